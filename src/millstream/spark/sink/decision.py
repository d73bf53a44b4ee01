"""A decision: the transactions that make up a batch of a query, as a record of the commit topic.

The key of the record is the query's id. The value is JSON:

    {"version": 1, "batch": 7, "never_expires": true, "transactions": [["id", 4711, 3], ...]}

A transaction is its transactional id with the producer id and epoch that may end it. Only the last
decision of a query matters, so the topic is compacted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from millstream.records.crc import Buffer
from millstream.spark.error import ProtocolError
from millstream.spark.sink.transaction_request import ProducerIdentity

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Decision:
    """The transactions of a batch that the driver decided to commit."""

    batch: int
    transactions: tuple[ProducerIdentity, ...]
    #: Whether the transactions are prepared, so that no timeout aborts them.
    never_expires: bool

    def encode(self) -> bytes:
        return json.dumps(
            {
                "version": _VERSION,
                "batch": self.batch,
                "never_expires": self.never_expires,
                "transactions": self.transactions,
            },
            separators=(",", ":"),
        ).encode()


def decode_decision(value: Buffer) -> Decision:
    """Decode the value of a record. Raises ProtocolError for an unknown version or other data."""
    try:
        found = json.loads(bytes(value))
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']} is unknown")
        return Decision(
            int(found["batch"]),
            tuple(
                ProducerIdentity(str(name), int(pid), int(epoch))
                for name, pid, epoch in found["transactions"]
            ),
            bool(found["never_expires"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"a decision in the commit topic cannot be read: {error}") from error
