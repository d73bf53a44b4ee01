"""`millstream acl` against brokers with an authorizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Outcome, Run
from harness.in_process.principal_server import PrincipalServerSet
from harness.raw.raw_client import values_batch
from millstream.model.error import ErrorCode


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrincipalServerSet]:
    with PrincipalServerSet(tmp_path_factory.mktemp("acl"), count=1) as found:
        with found.client(1) as client:
            client.create_topic("orders-1")
        yield found


@pytest.fixture
def acl(run: Run, brokers: PrincipalServerSet) -> Iterator[Run]:
    def run_acl(*arguments: str, **options: Any) -> Outcome:
        return run("acl", *arguments, "-b", brokers.address(1), **options)

    yield run_acl
    run("acl", "delete", "--allow-principal", "User:alice", "--yes", "-b", brokers.address(1))


def listed(acl: Run, *options: str) -> list[tuple[str, ...]]:
    rows = json.loads(acl("list", "--json", *options).out)
    return sorted(
        (row["permission"], row["operation"], row["resource_type"], row["resource_name"])
        for row in rows
    )


def test_create_list_and_delete(acl: Run) -> None:
    created = acl(
        "create", "--allow-principal", "User:alice", "--operation", "Read", "--operation",
        "describe-configs", "--topic", "orders", "--group", "g",
    )  # fmt: skip
    assert created.code == 0, created
    assert "allow User:alice read topic orders: created" in created.out
    assert listed(acl, "--topic", "orders") == [
        ("allow", "describe-configs", "topic", "orders"),
        ("allow", "read", "topic", "orders"),
    ]
    assert "orders" in acl("list").out
    assert acl("delete", "--topic", "orders").code == 2, "there is no terminal to confirm on"
    deleted = acl("delete", "--topic", "orders", "--yes", "--json")
    assert deleted.code == 0, deleted
    assert listed(acl, "--topic", "orders") == []
    assert len(listed(acl, "--group", "g")) == 2


def test_users_and_delegation_tokens(acl: Run) -> None:
    created = acl(
        "create", "--allow-principal", "User:alice", "--operation", "create-tokens",
        "--operation", "describe-tokens", "--user-principal", "User:bob",
    )  # fmt: skip
    assert created.code == 0, created
    assert "allow User:alice create-tokens user User:bob: created" in created.out
    token = ("--delegation-token", "abc")
    made = acl("create", "--allow-principal", "User:alice", "--operation", "describe", *token)
    assert made.code == 0, made
    assert listed(acl, "--user-principal", "User:bob") == [
        ("allow", "create-tokens", "user", "User:bob"),
        ("allow", "describe-tokens", "user", "User:bob"),
    ]
    assert listed(acl, *token) == [("allow", "describe", "delegation-token", "abc")]
    assert acl("delete", *token, "--user-principal", "User:bob", "--yes").code == 0
    assert listed(acl, "--principal", "User:alice") == []
    assert acl("create", "--allow-principal", "User:alice", "--user-principal", "bob").code == 2


def test_prefixed_denying_and_one_host(acl: Run) -> None:
    created = acl(
        "create", "--deny-principal", "User:alice", "--operation", "write", "--topic", "ord",
        "--resource-pattern-type", "prefixed", "--host", "10.0.0.1", "--json",
    )  # fmt: skip
    assert created.code == 0, created
    assert listed(acl, "--topic", "orders", "--resource-pattern-type", "match") == [
        ("deny", "write", "topic", "ord")
    ]
    assert listed(acl, "--topic", "orders", "--resource-pattern-type", "literal") == []
    removed = acl(
        "delete", "--deny-principal", "User:alice", "--yes", "--resource-pattern-type", "any"
    )
    assert removed.code == 0, removed
    assert acl("delete", "--deny-principal", "User:alice", "--yes").error == "No ACLs match.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "--topic", "t"),
        ("create", "--allow-principal", "User:alice"),
        ("create", "--allow-principal", "alice", "--topic", "t"),
        ("create", "--allow-principal", "User:alice", "--topic", "t", "--operation", "sing"),
        ("delete", "--yes"),
        ("grant", "t", "--role", "king", "--principal", "User:alice"),
    ],
)
def test_wrong_usage(acl: Run, arguments: tuple[str, ...]) -> None:
    assert acl(*arguments).code == 2


def test_a_role_allows_its_work_until_it_is_revoked(acl: Run, brokers: PrincipalServerSet) -> None:
    def produce() -> int:
        with brokers.client(1, "as-alice") as client:
            return client.produce("orders-1", values_batch(b"x")).error_code

    assert produce() == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    granted = acl("grant", "--role", "writer", "--principal", "User:alice", "orders-*")
    assert granted.code == 0, granted
    assert "allow User:alice write topic orders-*: created" in granted.out
    assert produce() == 0
    revoked = acl("revoke", "--role", "writer", "--principal", "User:alice", "orders-*", "--yes")
    assert revoked.code == 0, revoked
    assert produce() == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_client_without_rights_gets_the_error(acl: Run) -> None:
    failed = acl("list", "-X", "client.id=as-mallory")
    assert failed.code != 0
    assert "CLUSTER_AUTHORIZATION_FAILED" in failed.error


def test_learning_is_off(acl: Run) -> None:
    found = acl("learn")
    assert found.code == 0, found
    assert "Not all brokers learn" in found.error


# Learning mode


@pytest.fixture(scope="module")
def learning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrincipalServerSet]:
    with PrincipalServerSet(
        tmp_path_factory.mktemp("learning"), count=3, authorizer_mode="learn"
    ) as found:
        with found.client(1) as client:
            for name in ("orders.eu", "orders.us"):
                client.create_topic(name, replication_factor=1)
        yield found


def traffic(brokers: PrincipalServerSet, user: str, topic: str) -> list[int]:
    """Produce and fetch on every broker; return the error codes of the topic's leader."""
    leader = brokers.record(topic).leader
    with brokers.client(leader, f"as-{user}") as client:
        written = client.produce(topic, values_batch(b"x")).error_code
        return [written, client.fetch(topic, 0).error_code]


def test_learning_finds_the_acls_that_traffic_needs(run: Run, learning: PrincipalServerSet) -> None:
    assert traffic(learning, "alice", "orders.eu") == [0, 0]
    assert traffic(learning, "alice", "orders.us") == [0, 0]
    address = ("-b", learning.address(1))
    found = json.loads(run("acl", "learn", "--json", *address).out)
    assert found["learning"]
    assert {(row["operation"], row["resource_name"], row["missing"]) for row in found["acls"]} == {
        (operation, name, True)
        for operation in ("read", "write")
        for name in ("orders.eu", "orders.us")
    }
    assert {row["principal"] for row in found["denied"]} == {"User:alice"}
    merged = json.loads(run("acl", "learn", "--json", "--merge-prefixes", *address).out)
    assert {(row["operation"], row["resource_name"]) for row in merged["acls"]} == {
        ("read", "orders."),
        ("write", "orders."),
    }
    shown = run("acl", "learn", *address)
    assert "would be denied: User:alice" in shown.error
    applied = run("acl", "learn", "--apply", "--merge-prefixes", "--yes", *address)
    assert applied.code == 0, applied
    learning.wait_for_acls()
    after = json.loads(run("acl", "learn", "--json", *address).out)
    assert after["denied"] == []
    assert not any(row["missing"] for row in after["acls"])


def test_learning_gives_no_rights_to_everybody(run: Run, tmp_path: Path) -> None:
    with PrincipalServerSet(
        tmp_path, count=1, authorizer_mode="learn", super_users="User:admin"
    ) as brokers:
        with brokers.client(1) as client:
            client.create_topic("orders")
        address = ("-b", brokers.address(1), "-X", "client.id=as-admin")
        found = json.loads(run("acl", "learn", "--json", *address).out)
        assert {row["principal"] for row in found["denied"]} == {"User:ANONYMOUS"}
        applied = run("acl", "learn", "--apply", "--yes", *address)
        assert applied.code == 0, applied
        assert "No ACLs are created for User:ANONYMOUS" in applied.error
        assert json.loads(run("acl", "list", "--json", *address).out) == []
