"""Handlers of changing APIs record their changes, however they respond."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.broker.audit.audited import Change, audited, outcome_of
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.principal import Principal
from millstream.model.reply import Reply, ReplyKind
from millstream.security.audit_event import AuditEvent


class Trail:
    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def record(self, event: AuditEvent, /) -> None:
        self.events.append(event)

    @property
    def seen(self) -> list[tuple[str, str]]:
        return [(event.resource, event.outcome) for event in self.events]


class Session:
    """The receiver of replies."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.abandoned: list[Exception] = []

    def receive(self, result: Any, /) -> None:
        self.received.append(result)

    def failed(self, kind: str, error: Exception, /) -> None:
        pass

    def abandon(self, kind: str, error: Exception, /) -> None:
        self.abandoned.append(error)


def find(request: Any, response: Any) -> Iterable[Change]:
    yield Change(f"topic:{request}", response.code, "detail")


def context(trail: Trail, session: Session | None = None) -> Any:
    client = SimpleNamespace(principal=Principal("User", "alice"), address="10.0.0.1")
    return SimpleNamespace(
        services=SimpleNamespace(audit=trail),
        client=client,
        client_id="app",
        receiver=session or Session(),
    )


def response(code: int = 0) -> Any:
    return SimpleNamespace(code=code)


def test_a_response_is_recorded_with_the_client() -> None:
    trail = Trail()
    handle = audited("CreateTopics", lambda request, context: response(), find)
    handle("t", context(trail))  # type: ignore[arg-type]
    (event,) = trail.events
    assert event.action == "CreateTopics"
    assert (event.principal, event.address, event.client_id) == ("User:alice", "10.0.0.1", "app")
    assert (event.resource, event.outcome, event.detail) == ("topic:t", "ok", "detail")


def test_a_coroutine_is_recorded_when_it_ends() -> None:
    trail = Trail()

    async def slow(request: Any, context: Any) -> Any:
        await asyncio.sleep(0)
        return response(ErrorCode.TOPIC_ALREADY_EXISTS)

    async def run() -> None:
        outcome: Any = audited("A", slow, find)("t", context(trail))  # type: ignore[arg-type]
        assert not trail.events
        await outcome

    asyncio.run(run())
    assert trail.seen == [("topic:t", "TOPIC_ALREADY_EXISTS")]


def test_a_reply_is_recorded_before_the_session_gets_it() -> None:
    trail, session = Trail(), Session()
    replies: list[Reply[Any]] = []

    def later(request: Any, context: Any) -> Any:
        replies.append(
            Reply(ReplyKind.DELETE_GROUPS, context.receiver, lambda code: response(code))
        )
        return replies[-1]

    audited("A", later, find)("t", context(trail, session))  # type: ignore[arg-type]
    assert not trail.events
    replies[0].deliver(response())
    assert trail.seen == [("topic:t", "ok")]
    assert len(session.received) == 1


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_a_handler_that_raises_is_recorded(is_coroutine: bool) -> None:
    trail = Trail()

    def fail(request: Any, context: Any) -> Any:
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    async def fail_later(request: Any, context: Any) -> Any:
        fail(request, context)

    async def run() -> None:
        handle = audited("A", fail_later if is_coroutine else fail, find)
        outcome: Any = handle("t", context(trail))  # type: ignore[arg-type]
        await outcome

    with pytest.raises(BrokerError):
        asyncio.run(run())
    assert trail.seen == [("", "CLUSTER_AUTHORIZATION_FAILED")]


def test_changes_that_cannot_be_found_do_not_fail_the_request() -> None:
    trail = Trail()

    def broken(request: Any, response: Any) -> Iterable[Change]:
        raise KeyError("no such row")

    made = response()
    handle = audited("A", lambda request, context: made, broken)
    assert handle("t", context(trail)) is made  # type: ignore[arg-type]
    assert trail.events[0].detail == "its changes are unknown"


def test_outcomes() -> None:
    assert outcome_of(0) == "ok"
    assert outcome_of(3) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert outcome_of(9999) == "9999"


def test_markers_of_brokers_are_not_recorded() -> None:
    trail = Trail()
    handle = audited("WriteTxnMarkers", lambda request, context: response(), find)

    def sent(**fields: Any) -> list[tuple[str, str]]:
        request_context = context(trail)
        network = SimpleNamespace(inter_broker_listener="BROKERS")
        request_context.services.config = SimpleNamespace(network=network)
        request_context.client_id, request_context.listener = "broker-1", "BROKERS"
        request_context.holds_cluster = lambda operation: True
        request_context.__dict__.update(fields)
        trail.events.clear()
        handle("t", request_context)  # type: ignore[arg-type]
        return trail.seen

    assert sent() == []
    # A client that only claims to be a broker is recorded.
    assert sent(client_id="app") == [("topic:t", "ok")]
    assert sent(listener="CLIENTS") == [("topic:t", "ok")]
    assert sent(holds_cluster=lambda operation: False) == [("topic:t", "ok")]
