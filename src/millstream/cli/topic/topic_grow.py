"""`millstream topic grow`: give a topic more partitions, and keep the order of keys if wanted.

More partitions change the partition of most keys. New records of a key can then be read before its
older records in another partition. `--keep-order` prevents that: producers stop, the command waits
until every group has read everything, and only then adds the partitions.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millstream.cli.group.lag_reader import LagReader
from millstream.cli.support.completion import complete_groups, complete_topics
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import CommandError, ExitCode, guarded
from millstream.cli.support.option import DryRunOption, YesOption
from millstream.cli.support.outcome import confirm
from millstream.cli.support.progress import progress
from millstream.cli.support.quantity import Duration, duration_option
from millstream.cli.support.terminal import JsonOption, counted, note, print_json, print_table
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.client.admin import Admin
    from millstream.client.record import Partition

_POLL_S: Final = 0.5


@guarded
def grow(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics)],
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, help="The new, larger number of partitions.")
    ],
    keep_order: Annotated[
        bool,
        typer.Option(
            "--keep-order", help="Wait until all groups have read everything, then add partitions."
        ),
    ] = False,
    ignored_groups: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore-group",
            autocompletion=complete_groups,
            help="With --keep-order: do not wait for this group. Repeatable.",
        ),
    ] = None,
    wait_max: Annotated[
        Duration | None,
        duration_option("--max-wait", help="With --keep-order: give up after this long."),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Give a topic more partitions. They cannot be removed again.

    Most keys move to another partition. With --keep-order, stop the topic's producers first: the
    command shows which groups still have records to read, waits for them, and then adds the
    partitions.
    """
    if not keep_order and (ignored_groups or wait_max is not None):
        raise CommandError(ExitCode.USAGE, "--ignore-group and --max-wait need --keep-order.")
    connection = Connection(servers, properties, timeout)
    with connection.failing(topic=topic):
        admin = connection.open_admin()
        before = len(admin.describe_topic(topic).partitions)
        admin.create_partitions(topic, partitions, validate_only=True)
        drain = Drain(connection, admin, topic, ignored_groups or ())
        if keep_order and not as_json:
            _show_lag(topic, drain.lags())
        if dry_run:
            _report(topic, before, partitions, drain.lags() if keep_order else {}, as_json, False)
            return
        if not yes:
            _confirm(topic, before, partitions, keep_order)
        ends = drain.wait(wait_max) if keep_order else {}
        admin.create_partitions(topic, partitions)
        if keep_order and _is_written(ends, admin.list_topic_offsets(topic)):
            note(
                f"Records were written to {topic} while the partitions were added. Their keys may"
                " be read out of order: stop the producers before `topic grow --keep-order`."
            )
    _report(topic, before, partitions, {}, as_json, True)


def _is_written(before: Mapping[Partition, int], after: Mapping[Partition, int]) -> bool:
    """Whether records were written since `before`. New partitions begin at offset 0."""
    return any(offset != before.get(each, 0) for each, offset in after.items())


def _confirm(topic: str, before: int, total: int, keep_order: bool) -> None:
    grown = f"Grow {topic} from {before} to {counted(total, 'partition')}"
    question = (
        f"{grown} once all groups have read it? Its producers must be stopped."
        if keep_order
        else f"{grown}? Most keys move to another partition; --keep-order keeps their order."
    )
    confirm(question, "growing a topic", "the topic was not changed.")


class Drain:
    """Waits until all groups have read a topic."""

    __slots__ = ("_admin", "_connection", "_ignored", "_topic")

    def __init__(
        self, connection: Connection, admin: Admin, topic: str, ignored: Iterable[str]
    ) -> None:
        self._connection = connection
        self._admin = admin
        self._topic = topic
        self._ignored = frozenset(ignored)

    def lags(self) -> dict[str, list[dict[str, Any]]]:
        """Return the partitions with unread records, by group that has an offset in the topic."""
        lag_reader = LagReader(self._connection)
        try:
            return self._lags(lag_reader)
        finally:
            lag_reader.close()

    def _lags(self, lag_reader: LagReader) -> dict[str, list[dict[str, Any]]]:
        found = {}
        for listed in self._admin.list_groups():
            if listed.group_id in self._ignored:
                continue
            offsets = self._admin.list_group_offsets(listed.group_id)
            if any(each.topic == self._topic for each in offsets):
                row = lag_reader.describe(listed.group_id)
                found[listed.group_id] = [
                    each | {"members": row["members"]}
                    for each in row["partitions"]
                    if each["topic"] == self._topic and each["lag"] != 0
                ]
        return found

    def wait(self, wait_max: float | None) -> dict[Partition, int]:
        """Wait until no group has unread records and no record is written between two checks.

        Return the end offsets."""
        deadline = None if wait_max is None else time.monotonic() + wait_max
        lag_reader = LagReader(self._connection)
        ends: dict[Partition, int] = {}
        is_noted = False
        try:
            with progress("waiting for groups") as shown:
                while True:
                    last, ends = ends, self._admin.list_topic_offsets(self._topic)
                    lags = {name: rows for name, rows in self._lags(lag_reader).items() if rows}
                    if not lags and ends == last:
                        return ends
                    shown.update(what=_waiting(self._topic, lags))
                    if last and ends != last and not is_noted:
                        is_noted = True
                        note(f"Records are still written to {self._topic}: stop its producers.")
                    if deadline is not None and time.monotonic() > deadline:
                        raise _not_drained(self._topic, lags)
                    time.sleep(_POLL_S)
        finally:
            lag_reader.close()


def _waiting(topic: str, lags: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    if not lags:
        return f"waiting for {topic} to stay unchanged"
    parts = [
        f"{name} {sum(row['lag'] or 0 for row in rows):,} behind" for name, rows in lags.items()
    ]
    return f"waiting for {', '.join(parts)}"


def _not_drained(topic: str, lags: Mapping[str, Sequence[Mapping[str, Any]]]) -> CommandError:
    if not lags:
        reason = "records are still written to it: stop its producers"
    else:
        reason = (
            f"{', '.join(lags)} did not read everything: start their members, or leave groups out"
            " with --ignore-group"
        )
    return CommandError(ExitCode.FAILED, f"topic {topic!r} was not changed: {reason}.")


def _show_lag(topic: str, lags: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Print which groups have unread records, on standard output."""
    cells = [
        [name, row["partition"], row["committed_offset"], row["end_offset"], row["lag"]]
        for name, rows in lags.items()
        for row in rows
    ]
    if not lags:
        note(f"No group reads {topic}.")
    elif not cells:
        note(f"{counted(len(lags), 'group')} of {topic} read everything.")
    else:
        right = ("PARTITION", "COMMITTED", "END", "LAG")
        shown = [["-" if cell is None else cell for cell in row] for row in cells]
        print_table(["GROUP", *right], shown, right=right)
    for name, rows in lags.items():
        if rows and not rows[0]["members"]:
            note(
                f"Group {name!r} has no members: start them, or leave it out with"
                f" --ignore-group {name}."
            )


def _report(
    topic: str,
    before: int,
    total: int,
    lags: Mapping[str, Sequence[Mapping[str, Any]]],
    as_json: bool,
    is_done: bool,
) -> None:
    result = "grown" if is_done else "would be grown"
    if not as_json:
        typer.echo(f"{topic}: {result} from {before} to {counted(total, 'partition')}")
        return
    names = ("partition", "committed_offset", "end_offset", "lag")
    unread = [
        {"group": group, **{name: row[name] for name in names}}
        for group, rows in lags.items()
        for row in rows
    ]
    print_json(
        {
            "topic": topic,
            "partitions": before,
            "new_partitions": total,
            "unread": unread,
            "result": result,
        }
    )
