"""A reply ends once, reports its failure to its own request, and releases all references."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from harness.in_process.reply_receiver import RecordedReplies
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.failure import CallbackFailures, CallbackKind
from millstream.model.reply import Reply, ReplyKind

CODE = ErrorCode.NOT_COORDINATOR

ENDS: dict[str, Callable[[Reply[Any]], None]] = {
    "deliver": lambda reply: reply.deliver(1),
    "fail": lambda reply: reply.fail(CODE),
    "crash": lambda reply: reply.crash(ValueError()),
    "cancel": lambda reply: reply.cancel(),
}


def raising(*_: object) -> Any:
    raise ValueError("on purpose")


@pytest.mark.parametrize("first", ENDS)
@pytest.mark.parametrize("second", ENDS)
def test_a_reply_ends_once(first: str, second: str) -> None:
    kept = RecordedReplies()
    reply = kept.reply()
    ended: list[int] = []
    reply.on_end = lambda: ended.append(1)
    assert reply.is_open
    ENDS[first](reply)
    expected = {"deliver": [1], "fail": [CODE], "crash": [ErrorCode.UNKNOWN_SERVER_ERROR]}
    assert kept.results == expected.get(first, [])
    assert not reply.is_open
    reply.run(raising)
    ENDS[second](reply)
    assert kept.results == expected.get(first, [])
    assert ended == [1]
    assert len(kept.failures) == (first == "crash")


def test_the_response_is_built_from_the_delivered_value() -> None:
    kept = RecordedReplies()
    Reply(ReplyKind.FETCH, kept, raising, lambda value: value + 1).deliver(1)
    assert kept.results == [2]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError(), ErrorCode.UNKNOWN_SERVER_ERROR),
        (OSError(), ErrorCode.KAFKA_STORAGE_ERROR),
        (BrokerError(CODE), CODE),
    ],
)
def test_a_failure_becomes_an_error_response(error: Exception, code: ErrorCode) -> None:
    def fail(_: object = None) -> None:
        raise error

    kept = RecordedReplies()
    Reply(ReplyKind.FETCH, kept, lambda code: code, fail).deliver(1)
    kept.reply().run(fail)
    kept.reply().crash(error)
    assert kept.results == [code] * 3
    assert kept.failures == [(ReplyKind.FETCH, error)] * 3
    assert kept.abandoned == []


def test_a_request_is_abandoned_if_its_error_response_fails() -> None:
    kept = RecordedReplies()
    for end in ENDS.values():
        end(Reply(ReplyKind.FETCH, kept, raising, raising))
    assert kept.results == []
    assert len(kept.abandoned) == 3
    assert [kind for kind, _ in kept.failures] == [ReplyKind.FETCH] * 2


@pytest.mark.parametrize("end", ENDS)
def test_on_end_that_raises_does_not_prevent_the_response(end: str) -> None:
    kept = RecordedReplies()
    reply = kept.reply()
    reply.on_end = raising
    ENDS[end](reply)
    assert len(kept.results) == (end != "cancel")
    assert kept.failures


def test_a_callback_that_raises_after_the_response_is_reported() -> None:
    kept = RecordedReplies()
    reply = kept.reply()

    def respond_and_raise() -> None:
        reply.deliver(1)
        raise ValueError

    reply.run(respond_and_raise)
    assert kept.results == [1]
    assert len(kept.failures) == 1


class Waiting:
    """A waiting request as handlers build it: it and its reply refer to each other."""

    def __init__(self, kept: RecordedReplies) -> None:
        self.reply: Reply[Any] = Reply(ReplyKind.FETCH, kept, self.refuse, self.respond)
        self.reply.on_end = self.let_go

    def refuse(self, code: ErrorCode) -> ErrorCode:
        return code

    def respond(self, value: int) -> int:
        return value

    def let_go(self) -> None:
        pass


@pytest.mark.parametrize("end", ENDS)
def test_an_ended_reply_is_in_no_reference_cycle(end: str) -> None:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        waiting = Waiting(RecordedReplies())
        seen = weakref.ref(waiting)
        ENDS[end](waiting.reply)
        del waiting
        assert seen() is None
    finally:
        if was_enabled:
            gc.enable()


def test_failures_go_to_the_waiting_request_or_are_counted() -> None:
    kept, failures, error = RecordedReplies(), CallbackFailures(), ValueError()
    reply = kept.reply()
    failures.fail_reply(CallbackKind.OFFSET_WAITER, error, reply)
    assert kept.results == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert failures.counts == {}
    failures.fail_reply(CallbackKind.OFFSET_WAITER, error, reply)
    failures.fail_reply(CallbackKind.OFFSET_WAITER, error, None)
    failures.run(CallbackKind.TIMER, "it", raising)
    assert failures.counts == {CallbackKind.OFFSET_WAITER: 2, CallbackKind.TIMER: 1}
