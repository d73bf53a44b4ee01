"""The records that every client must transfer unchanged, and which of them a client cannot send."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from clients.contract import NULL_BOTH, NULL_HEADER, Record

LARGE_BYTES = 5 << 20

SAMPLES: dict[str, Record] = {
    "plain": Record(b"key", b"value"),
    "null key": Record(None, b"value"),
    "empty key": Record(b"", b"value"),
    "null value": Record(b"key", None),
    "empty value": Record(b"key", b""),
    "null key and value": Record(None, None),
    "any byte": Record(b"key", bytes(range(256)) * 3 + b"\n"),
    "text beyond ascii": Record("schlüssel".encode(), "値".encode(), (("größe", "ß".encode()),)),
    "headers": Record(b"key", b"value", (("first", b"1"), ("second", b"2"), ("third", b"3"))),
    "a header twice": Record(b"key", b"value", (("twice", b"1"), ("twice", b"2"), ("once", b"3"))),
    "empty header": Record(b"key", b"value", (("empty", b""), ("after", b"1"))),
    "null header": Record(b"key", b"value", (("null", None), ("after", b"1"))),
    "headers only": Record(None, None, (("alone", b"1"),)),
    "long": Record(b"key" * 100, b"0123456789abcdef" * 4096),
}

NEEDED = {
    "null key and value": NULL_BOTH,
    "headers only": NULL_BOTH,
    "null header": NULL_HEADER,
}


def large_record() -> Record:
    """Return a record that no codec can compress."""
    return Record(b"large", random.Random(5).randbytes(LARGE_BYTES))


def samples_for(lacks: frozenset[str]) -> list[Record]:
    """Return the samples that a client with these gaps can send."""
    return [record for name, record in SAMPLES.items() if NEEDED.get(name) not in lacks]


def sample_parameters(clients: dict[str, frozenset[str]]) -> Iterator[Any]:
    """Return every (client, sample) pair; pairs that the client cannot send are skipped by name."""
    for client, lacks in clients.items():
        for sample in SAMPLES:
            missing = NEEDED.get(sample)
            reason = f"{client} cannot send {missing}"
            marks = [pytest.mark.skip(reason=reason)] if missing in lacks else []
            yield pytest.param(client, sample, marks=marks, id=f"{client}-{sample}")
