"""Waiting until the batches of a Produce request are acknowledged.

The response leaves when every batch has what `acks` asks for, when one can no longer get it, or
when the request's time is up. No task and no copy: each partition holds one callback.
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
    """A batch that was appended, and the row that will say so."""

    __slots__ = ("end_offset", "partition", "row")

    def __init__(self, partition: Partition, row: _Row, end_offset: int) -> None:
        self.partition = partition
        self.row = row
        self.end_offset = end_offset


def unacknowledged(appended: list[Appended], elapsed_s: float, *, acks_all: bool) -> list[Appended]:
    """Return the batches that have to wait; the others are acknowledged after `elapsed_s`."""
    waiting: list[Appended] = []
    for entry in appended:
        if entry.partition.is_acknowledged(entry.end_offset, acks_all=acks_all):
            entry.partition.ack_latency.observe(elapsed_s)
        else:
            waiting.append(entry)
    return waiting


class Acknowledgement:
    """Responds when all awaited batches are acknowledged, or at the timeout."""

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
        #: Empty once the reply has ended.
        self._awaited = awaited
        refuse = partial(_refuse_awaited, response, awaited)
        if reply is None:
            reply = Reply(ReplyKind.PRODUCE, context.receiver, refuse)
        else:
            reply.refuse_by(refuse)
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
        """Drop the response: partitions may hold on to this object until their offset is passed."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._awaited = []
        self._response = None


def _refuse_awaited(
    response: ProduceResponse, awaited: list[Appended], code: ErrorCode
) -> ProduceResponse:
    """The response in which all batches that were awaited have an error: the producer can't be told
    which of them are kept."""
    _set_errors(awaited, code)
    return response


def _set_errors(entries: list[Appended], code: ErrorCode) -> None:
    for entry in entries:
        entry.row.error_code = code
        entry.row.base_offset = -1
