"""Producers whose batch was turned away for a while, and what their next batches are told. Pure.

A client has several batches on their way. When the first is turned away for a reason that passes (a
full disk, too few replicas, a lease that was not renewed in time), those behind it are out of
sequence by no fault of theirs. Told just that, librdkafka begins a new epoch and sends again, under
it, what may have been stored in other partitions: duplicates. So they are told what the first was
told, and the client repeats them all in order.

A client that never repeats the first batch is told the truth after as many batches as it may have
had on their way.
"""

from __future__ import annotations

from typing import Final

from millstream.model.error import BrokerError, ErrorCode

#: Batches of one idempotent producer that may be on their way at a time.
_IN_FLIGHT_MAX: Final = 5
_PRODUCERS_MAX: Final = 1000
_PASSING: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
)


class Refusals:
    """Of one partition."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        #: By producer id: what it was told, and how many more batches are told so.
        self._last: dict[int, tuple[ErrorCode, int]] = {}

    def __len__(self) -> int:
        return len(self._last)

    def told(self, producer_id: int, error: BrokerError) -> BrokerError:
        """What to tell the producer of a batch that could not be appended because of `error`."""
        if producer_id < 0:
            return error
        if error.code in _PASSING:
            if len(self._last) >= _PRODUCERS_MAX:
                del self._last[next(iter(self._last))]
            self._last[producer_id] = (error.code, _IN_FLIGHT_MAX - 1)
            return error
        found = self._last.pop(producer_id, None)
        if found is None or error.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return error
        code, left = found
        if left > 1:
            self._last[producer_id] = (code, left - 1)
        return BrokerError(code, f"a batch before it was turned away ({error.message})")

    def appended(self, producer_id: int) -> None:
        self._last.pop(producer_id, None)
