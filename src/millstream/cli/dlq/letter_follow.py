"""Print dead letters as they arrive, after those that the topic already has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from millstream.cli.dlq.letter_option import key_text, letter_row
from millstream.cli.support.terminal import format_time

if TYPE_CHECKING:
    from millstream.client.dead_letter import DeadLetter, DeadLetterTopic, Selection


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
    from millstream.client.consumer.consumer import Consumer
    from millstream.client.dead_letter import DeadLetter

    properties = dict(dead_letters.properties)
    with Consumer(
        properties.pop("bootstrap.servers"),
        topics=[dead_letters.topic],
        auto_offset_reset="earliest",
        config=properties,
    ) as consumer:
        yield from map(DeadLetter.of, consumer)
