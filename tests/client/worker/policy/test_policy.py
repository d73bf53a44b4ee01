"""What follows an attempt, the circuit breaker, and the hint for autoscalers."""

from __future__ import annotations

import pytest

from millstream.client.error import SerializationError, UsageError
from millstream.client.record import Partition
from millstream.client.worker.hint import hint_of, lag_of
from millstream.client.worker.policy.breaker import Breaker
from millstream.client.worker.policy.policy import (
    AttemptResult,
    WorkerSettings,
    backoff_s,
    next_step,
)

FAILED = AttemptResult("nack", None, ZeroDivisionError())


def test_failed_messages_pass_through_the_retry_topics() -> None:
    settings = WorkerSettings(order="none", attempts_max=9, backoff=0.5)
    topics = [next_step(settings, "t", attempts, FAILED).topic for attempts in range(1, 9)]
    assert topics == [f"t.retry.{level}" for level in (1, 2, 3, 4, 5, 5, 5, 5)]
    assert next_step(settings, "t", 9, FAILED).kind == "dead_letter"
    assert settings.own_topics("t") == [*dict.fromkeys(topics), "t.scheduled", "t.parked"]


def test_failed_messages_wait_in_place_where_order_is_kept() -> None:
    settings = WorkerSettings(attempts_max=2)
    following = next_step(settings, "t", 1, AttemptResult("nack", 7.5, "later"))
    assert (following.kind, following.delay_s) == ("wait", 7.5)
    assert next_step(settings, "t", 2, FAILED).kind == "dead_letter"
    assert settings.own_topics("t") == ["t.scheduled", "t.parked"]


def test_rejected_and_fatal_failures_become_dead_letters() -> None:
    settings = WorkerSettings()
    assert next_step(settings, "t", 1, AttemptResult("reject", None, "no")).kind == "dead_letter"
    assert (
        next_step(settings, "t", 1, AttemptResult("nack", None, SerializationError())).kind
        == "dead_letter"
    )
    assert next_step(settings, "t", 9, AttemptResult("ack")).kind == "done"


def test_backoff_is_random_up_to_a_bound_that_doubles() -> None:
    settings = WorkerSettings(backoff=1.0, backoff_max=10.0)
    for attempts, bound in ((1, 1.0), (2, 2.0), (4, 8.0), (5, 10.0), (5000, 10.0)):
        delays = [backoff_s(settings, attempts) for _ in range(2000)]
        assert 0 <= min(delays) < bound * 0.1
        assert bound * 0.9 < max(delays) <= bound


def test_a_breaker_opens_half_opens_and_closes() -> None:
    breaker = Breaker(failures=3, rest=10.0, on=(ConnectionError,))
    assert not breaker.failed(ValueError(), 0.0)
    assert not breaker.failed(ConnectionError(), 0.0)
    assert not breaker.failed(ConnectionError(), 0.0)
    assert breaker.allowed(0.0) is None
    assert breaker.failed(ConnectionError(), 1.0)
    assert not breaker.is_closed
    assert (breaker.allowed(10.9), breaker.allowed(11.0)) == (0, 1)
    assert breaker.failed(ConnectionError(), 12.0)
    assert (breaker.allowed(21.9), breaker.allowed(22.0)) == (0, 1)
    breaker.succeeded()
    assert breaker.allowed(22.0) is None
    assert not breaker.failed(ConnectionError(), 23.0)
    with pytest.raises(UsageError, match="greater than 0"):
        Breaker(failures=0)


def test_hints() -> None:
    assert hint_of(0, 5.0, 60.0, 8).workers == 0
    assert hint_of(10, 0.0, 60.0, 8).workers == 1
    assert hint_of(6000, 10.0, 60.0, 12).workers == 10
    assert hint_of(60_000, 10.0, 60.0, 12).workers == 12
    ends = {Partition("t", 0): 10, Partition("t", 1): 5}
    assert lag_of(ends, {Partition("t", 0): 4, Partition("u", 0): 4}) == 11


def test_names_of_several_processes_differ() -> None:
    settings = WorkerSettings(name="a", consumer={"group_instance_id": "b", "session_timeout": 9.0})
    numbered = settings.numbered(2)
    assert numbered.name == "a-2"
    assert numbered.consumer == {"group_instance_id": "b-2", "session_timeout": 9.0}
    assert WorkerSettings().numbered(2) == WorkerSettings()
