"""Where it is kept which messages were processed: the port that `once` stands on.

    absent   --claim-->     claimed, until its lease ends
    claimed  --complete-->  done, until its time to live ends
    claimed  --release-->   absent

A lease or time to live that has ended makes an id absent. Each method is atomic, and safe to use
from several threads and processes.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol


class Claim(Enum):
    TAKEN = auto()  # by the caller, just now
    BUSY = auto()  # another one processes it
    DONE = auto()  # it was processed


class StoreError(Exception):
    """The store can't be reached or refused; the message is its own."""


class Store(Protocol):
    def claim(self, message_id: str, token: str, lease_s: float) -> Claim:
        """Try to get a message to oneself."""

    def complete(self, message_id: str, token: str, ttl_s: float) -> bool:
        """The message was processed. False if the claim was lost meanwhile."""

    def release(self, message_id: str, token: str) -> None:
        """The message was not processed; another one may."""

    def close(self) -> None: ...
