"""A decision: which transactions make up a batch of a query. As a record of the commit topic.

The key is the query's id, the value JSON:

    {"version": 1, "batch": 7, "never_expires": true, "transactions": [["id", 4711, 3], ...]}

A transaction is its transactional id with the producer id and epoch that may end it. Only the last
decision of a query counts, so the topic is compacted.
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
    batch: int
    transactions: tuple[ProducerIdentity, ...]
    #: Whether the brokers keep the transactions until they are ended.
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
    """Raises ProtocolError if it is not a decision that can be read here."""
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
