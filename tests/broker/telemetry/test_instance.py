"""Client instances: when requests are accepted, and how many instances are kept."""

from __future__ import annotations

import pytest

from millstream.broker.context import ConnectedClient
from millstream.broker.telemetry import instance as module
from millstream.broker.telemetry.instance import ClientInstance, ClientInstances
from millstream.broker.telemetry.subscription import PushPlan
from millstream.model.error import ErrorCode

CLIENT, OTHER_CLIENT = ConnectedClient("127.0.0.1", 1), ConnectedClient("127.0.0.1", 2)


def instance(interval_ms: int = 1000) -> ClientInstance:
    return ClientInstance(PushPlan(("*",), interval_ms, 1), 1, CLIENT)


def test_subscriptions_may_be_requested_once_an_interval() -> None:
    client = instance()
    assert client.accept_get(10.0)
    assert not client.accept_get(10.9)
    assert client.accept_get(11.0)
    assert client.accept_push(11.5, is_last=False)
    assert not client.accept_get(12.4), "an interval after the last request, whatever it was"
    assert client.accept_get(12.5)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, True),
        (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, True),
        (ErrorCode.TELEMETRY_TOO_LARGE, False),
    ],
)
def test_after_some_errors_subscriptions_may_be_requested_at_once(
    error: ErrorCode, expected: bool
) -> None:
    client = instance()
    assert client.accept_get(10.0)
    client.last_error = error
    assert client.accept_get(10.1) == expected
    if expected:
        assert not client.accept_get(10.2), "once"


def test_pushes_come_once_an_interval() -> None:
    client = instance()
    assert client.accept_push(10.0, is_last=False), "another broker has met the client before"
    assert not client.accept_push(10.9, is_last=False)
    assert client.accept_push(11.0, is_last=False)


def test_the_first_push_after_a_request_and_the_last_one_may_come_at_any_time() -> None:
    client = instance()
    assert client.accept_push(10.0, is_last=False)
    assert client.accept_get(11.0)
    assert client.accept_push(11.1, is_last=False)
    assert not client.accept_push(11.2, is_last=False)
    assert client.accept_push(11.3, is_last=True)


@pytest.mark.parametrize(("interval_ms", "expected"), [(100, 70.0), (60_000, 190.0)])
def test_an_instance_expires_after_three_intervals_or_a_minute(
    interval_ms: int, expected: float
) -> None:
    client = instance(interval_ms)
    client.touch(10.0, OTHER_CLIENT)
    assert (client.expires_at, client.client) == (expected, OTHER_CLIENT)


def test_the_least_recently_used_instance_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INSTANCES_MAX", 2)
    instances = ClientInstances()
    assert instances.put(b"a", instance()) is None
    assert instances.put(b"b", instance()) is None
    assert instances.use(b"a") is not None
    assert instances.put(b"c", instance()) == b"b"
    assert instances.use(b"b") is None
    assert instances.put(b"a", instance()) is None, "replaced, not added"
    assert len(instances) == 2


def test_an_instance_is_removed_by_its_own_connection_only() -> None:
    instances = ClientInstances()
    instances.put(b"a", instance())
    assert not instances.remove(b"a", OTHER_CLIENT)
    assert instances.remove(b"a", CLIENT)
    assert not instances.remove(b"a", CLIENT)


def test_instances_without_pushes_expire() -> None:
    instances = ClientInstances()
    for name, now in ((b"a", 0.0), (b"b", 5.0)):
        client = instance(100)
        client.touch(now, CLIENT)
        instances.put(name, client)
    assert list(instances.expire(60.0)) == [b"a"]
    assert b"a" not in instances
    assert b"b" in instances
