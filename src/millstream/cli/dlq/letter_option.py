"""The options of `millstream dlq` commands, and the letters as rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from millstream.cli.support.completion import complete_groups, complete_topics
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    client_properties,
)
from millstream.cli.support.failure import CommandError, ExitCode, failing_with
from millstream.cli.support.message import put_bytes
from millstream.cli.support.position import parse_moment_option

if TYPE_CHECKING:
    from millstream.client.dead_letter import DeadLetter, DeadLetterTopic, Selection
    from millstream.client.dead_letter.letter import LetterId

TopicArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="The topic, or its dead-letter topic (TOPIC.dlq).",
        autocompletion=complete_topics,
    ),
]
ErrorOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--error", help="Only errors whose type or message contains this text, in any case."
    ),
]
KeyOption: TypeAlias = Annotated[
    str | None, typer.Option("--key", help="Only letters with this key.")
]
OriginOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--original-topic",
        help="Only messages that came from this topic.",
        autocompletion=complete_topics,
    ),
]
GroupOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="Only messages that this group consumed.",
        autocompletion=complete_groups,
    ),
]
SinceOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only letters since then: 10m, 2h, a date."),
]
UntilOption: TypeAlias = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only letters before then.")
]
LettersOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--letter", "-l", metavar="PARTITION:OFFSET", help="Only this letter. Repeatable."
    ),
]


def letter_row(letter: DeadLetter, is_replayed: bool) -> dict[str, Any]:
    origin = letter.origin
    row: dict[str, Any] = {"letter": str(letter.id), "timestamp": letter.timestamp}
    put_bytes(row, "key", letter.key)
    return row | {
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": origin.offset,
        "original_timestamp": origin.timestamp,
        "group": origin.group,
        "attempts": origin.attempts,
        "error_type": letter.error_type,
        "error_message": letter.error_message,
        "replayed": is_replayed,
    }


def key_text(row: dict[str, Any]) -> str:
    return str(row.get("key") or "") if "key" in row else f"base64:{row['key_base64']}"


def selection(
    error: str | None,
    key: str | None,
    topic: str | None,
    group: str | None,
    since: str | None,
    until: str | None,
    letters: list[str] | None,
) -> Selection:
    from millstream.client.dead_letter import Selection

    return Selection(
        error=error,
        key=None if key is None else key.encode(),
        topic=topic,
        group_id=group,
        since_ms=None if since is None else parse_moment_option(since, "--since"),
        until_ms=None if until is None else parse_moment_option(until, "--until"),
        ids=frozenset(map(letter_id, letters)) if letters else None,
    )


def letter_id(text: str) -> LetterId:
    from millstream.client.dead_letter.letter import LetterId

    try:
        return LetterId.parse(text)
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"{error}.") from None


def dead_letters_of(topic: str, servers: str, properties: list[str] | None) -> DeadLetterTopic:
    """Return the dead-letter topic of `topic`. Raises CommandError if it does not exist."""
    from millstream.client.dead_letter import DeadLetterTopic

    dead_letters = DeadLetterTopic(
        topic, config=client_properties(servers, properties, "millstream-cli")
    )
    connection = Connection(servers, properties, TIMEOUT_S_DEFAULT)
    with connection.failing(), connection.open_admin() as admin:
        topics = admin.list_topics(internal=True)
    if dead_letters.topic not in topics:
        raise CommandError(
            ExitCode.NOT_FOUND,
            f"topic {dead_letters.topic!r} does not exist: there are no dead letters.",
        )
    return dead_letters


@contextmanager
def client_failures(servers: str) -> Iterator[None]:
    """Turn the client's exceptions into the command's failure."""
    from millstream.client.error import MillstreamError, ProducerFenced, TimedOut

    with (
        failing_with({MillstreamError: ExitCode.FAILED}),
        failing_with({TimedOut: ExitCode.NO_CONNECTION}, f"{servers}: "),
    ):
        try:
            yield
        except ProducerFenced:
            raise CommandError(
                ExitCode.FAILED, "another replay of this topic was started and continues instead."
            ) from None
