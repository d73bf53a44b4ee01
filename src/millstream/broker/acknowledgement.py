"""Waits until the batches of a Produce request are acknowledged.

The response leaves when every batch has what `acks` requires, when a batch can no longer get it, or
at the request's timeout. Waiting needs no task and no copy: each partition holds one callback.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from millstream.broker.context import Context
from millstream.model.error import ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.replication.partition import Partition
from millstream.wire.messages.produce import ProduceRequest, ProduceResponse

ACKS_ALL: Final = -1

_Row = ProduceResponse.Topic.Partition


class Appended:
    """A batch that was appended, and its row of the response."""

    __slots__ = ("end_offset", "partition", "row")

    def __init__(self, partition: Partition, row: _Row, end_offset: int) -> None:
        self.partition = partition
        self.row = row
        self.end_offset = end_offset


def unacknowledged(appended: list[Appended], elapsed_s: float, *, acks_all: bool) -> list[Appended]:
    """Return the batches that still wait; record `elapsed_s` as the latency of all others."""
    waiting: list[Appended] = []
    for entry in appended:
        if entry.partition.is_acknowledged(entry.end_offset, acks_all=acks_all):
            entry.partition.ack_latency.observe(elapsed_s)
        else:
            waiting.append(entry)
    return waiting


class Acknowledgement:
    """Sends the response when all awaited batches are acknowledged, or at the timeout."""

    __slots__ = ("_acks_all", "_awaited", "_clock", "_received_at", "_response", "_timer", "reply")

    def __init__(
        self,
        response: ProduceResponse,
        awaited: list[Appended],
        request: ProduceRequest,
        context: Context,
        reply: Reply[ProduceResponse] | None,
    ) -> None:
        self._response: ProduceResponse | None = response
        self._clock = context.services.clock
        self._received_at = context.received_at
        self._acks_all = request.acks == ACKS_ALL
        #: Batches that are not acknowledged; empty once the reply has ended.
        self._awaited = awaited
        reject = partial(_reject_awaited, response, awaited)
        if reply is None:
            reply = Reply(ReplyKind.PRODUCE, context.receiver, reject)
        else:
            reply.reject_by(reject)
        reply.on_end = self._forget
        self.reply: Reply[ProduceResponse] = reply
        loop = asyncio.get_running_loop()
        timeout_s = max(request.timeout_ms, 0) / 1000
        self._timer: asyncio.TimerHandle | None = loop.call_later(
            timeout_s, reply.run, self._time_out
        )
        for entry in awaited:
            entry.partition.when_acknowledged(
                entry.end_offset, self._check, reply, acks_all=self._acks_all
            )

    def _check(self) -> None:
        if not self._awaited:
            return
        elapsed_s = self._clock.monotonic() - self._received_at
        still = unacknowledged(self._awaited, elapsed_s, acks_all=self._acks_all)
        for entry in still:
            if not entry.partition.is_leader:
                entry.row.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif self._acks_all and entry.partition.is_under_min_isr:
                entry.row.error_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            else:
                continue
            entry.row.base_offset = -1
        self._awaited = [entry for entry in still if not entry.row.error_code]
        if not self._awaited:
            self._respond()

    def _time_out(self) -> None:
        _set_errors(self._awaited, ErrorCode.REQUEST_TIMED_OUT)
        self._respond()

    def _respond(self) -> None:
        assert self._response is not None, "the reply is open"
        self.reply.deliver(self._response)

    def _forget(self) -> None:
        """Drop the response. Partitions may reference this object until they pass its offset."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._awaited = []
        self._response = None


def _reject_awaited(
    response: ProduceResponse, awaited: list[Appended], code: ErrorCode
) -> ProduceResponse:
    """Return the response with an error for every awaited batch: this broker cannot tell which of
    them will stay in the log."""
    _set_errors(awaited, code)
    return response


def _set_errors(entries: list[Appended], code: ErrorCode) -> None:
    for entry in entries:
        entry.row.error_code = code
        entry.row.base_offset = -1
