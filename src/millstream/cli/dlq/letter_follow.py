"""Print dead letters as they arrive, after those that the topic already has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final

import typer

from millstream.cli.dlq.letter_option import key_text, letter_row
from millstream.cli.support.terminal import format_time

if TYPE_CHECKING:
    from millstream.client.dead_letter import DeadLetter, DeadLetterTopic, Selection

_POLL_S: Final = 0.2


def follow_letters(dead_letters: DeadLetterTopic, selection: Selection, *, as_json: bool) -> None:
    """Print the selected letters, one per line, until Ctrl-C."""
    already = dead_letters.replayed()
    try:
        for letter in _letters(dead_letters):
            if not selection.has(letter):
                continue
            row = letter_row(letter, letter.id in already)
            if as_json:
                typer.echo(json.dumps(row, ensure_ascii=False))
            else:
                typer.echo(
                    f"{row['letter']}  {format_time(row['timestamp'])}"
                    f"  {row['topic']}-{row['partition']}@{row['offset']}  key {key_text(row)!r}"
                    f"  {row['error_type']}: {row['error_message']}"
                )
    except KeyboardInterrupt:
        # Ctrl-C is the normal end of --follow.
        return


def _letters(dead_letters: DeadLetterTopic) -> Iterator[DeadLetter]:
    """Yield all letters, and wait for new ones."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    from millstream.client.dead_letter import DeadLetter
    from millstream.client.error import from_kafka
    from millstream.client.record import Record

    properties = dead_letters.properties | {
        # librdkafka needs a group name even without a group.
        "group.id": "millstream-dead-letters",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    with closing(Consumer(properties)) as consumer:
        partitions = (
            consumer.list_topics(dead_letters.topic, timeout=10)
            .topics[dead_letters.topic]
            .partitions
        )
        consumer.assign(
            [TopicPartition(dead_letters.topic, each, OFFSET_BEGINNING) for each in partitions]
        )
        while True:
            message = consumer.poll(_POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield DeadLetter.of(Record(message))
            elif not error.retriable():
                raise from_kafka(error, f"Reading {dead_letters.topic!r}")
