"""The store of processed messages that `once` uses: the port.

    absent   --claim-->     claimed, until its lease expires
    claimed  --complete-->  done, until its time to live ends
    claimed  --release-->   absent

An id whose lease or time to live has ended is absent. Each method is atomic, and safe to use from
several threads and processes.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

from millstream.model.error import MillstreamError


class Claim(Enum):
    """The result of a claim."""

    TAKEN = auto()  # by this call
    BUSY = auto()  # another process has it
    DONE = auto()  # it was processed


class StoreError(MillstreamError):
    """The store cannot be reached, or rejected the request. The message is its own."""


class Store(Protocol):
    """Remembers which messages were processed."""

    def claim(self, message_id: str, token: str, lease_s: float) -> Claim:
        """Try to claim a message."""

    def complete(self, message_id: str, token: str, ttl_s: float) -> bool:
        """Mark the message as processed. False if the claim was lost meanwhile."""

    def release(self, message_id: str, token: str) -> None:
        """Give up the claim: the message was not processed."""

    def close(self) -> None:
        """Close the connections."""
