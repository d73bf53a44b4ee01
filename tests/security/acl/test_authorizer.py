"""The authorizer: super users, the default, the cache of decisions, and learning mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millstream.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta
from millstream.model.acl import OPERATIONS_OF, Operation, ResourceType
from millstream.model.map import Map
from millstream.model.principal import Principal
from millstream.security.acl import authorizer as module
from millstream.security.acl.authorizer import (
    Authorizer,
    AuthorizerOptions,
    all_operations,
    resource_text,
)
from millstream.security.acl.observation import Observations
from millstream.security.acl.rule_set import RuleSet
from security.acl.acl_case import Acl, allow, deny, records, topic

ALICE = Principal("User", "alice")
HOST = "10.0.0.1"
READ = Operation.READ
TOPIC = ResourceType.TOPIC
KEY = (ALICE, HOST, READ, TOPIC, "orders")


def image_of(*acls: Acl) -> ClusterImage:
    return replace(EMPTY_IMAGE, acls=Map(records(*acls)))


def authorizer(*acls: Acl, **options: object) -> Authorizer:
    return Authorizer(AuthorizerOptions(**options), image_of(*acls))  # type: ignore[arg-type]


def test_super_users_may_do_everything() -> None:
    rights = authorizer(
        deny("User:alice", READ, topic("orders")), super_users=frozenset({"User:alice"})
    )
    assert rights.decide(KEY)
    assert not rights.decide((Principal("User", "Alice"), *KEY[1:]))
    assert not rights.decide((Principal("Group", "alice"), *KEY[1:]))


def test_acls_of_groups_apply_to_their_members() -> None:
    rights = authorizer(
        allow("Group:readers", READ, topic("orders")),
        deny("Group:contractors", READ, topic("orders")),
        allow("User:readers", Operation.WRITE, topic("orders")),
        super_users=frozenset({"Group:admins"}),
    )

    def allowed(*groups: str, operation: Operation = READ) -> bool:
        member = ALICE._replace(groups=groups)
        assert rights.allows_any(member, HOST, operation, TOPIC) == rights.decide(
            (member, HOST, operation, TOPIC, "orders")
        )
        return rights.decide((member, HOST, operation, TOPIC, "orders"))

    assert allowed("Group:others", "Group:readers")
    assert not allowed()
    assert not allowed("Group:reader")
    assert not allowed("Group:readers", "Group:contractors")
    assert allowed("Group:contractors", "Group:admins", operation=Operation.WRITE)
    # A group is no user, and a user is no group.
    assert not allowed("Group:readers", operation=Operation.WRITE)
    assert not rights.decide((Principal("User", "Group:readers"), HOST, READ, TOPIC, "orders"))
    assert not rights.decide((Principal("User", "admins"), HOST, READ, TOPIC, "orders"))


@pytest.mark.parametrize("is_open", [True, False])
def test_resources_without_acls(is_open: bool) -> None:
    rights = authorizer(allow("User:bob", READ, topic("orders")), allows_without_acl=is_open)
    assert not rights.decide(KEY)
    assert rights.decide((ALICE, HOST, READ, TOPIC, "orders2")) == is_open
    assert rights.allows_any(ALICE, HOST, Operation.WRITE, TOPIC) == is_open


def test_whether_any_resource_is_allowed_is_decided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decided = []
    decide = RuleSet.allows_any

    def count(self: RuleSet, *arguments: Any) -> bool:
        decided.append(arguments)
        return decide(self, *arguments)

    monkeypatch.setattr(RuleSet, "allows_any", count)
    rights = authorizer(allow("User:alice", READ, topic("orders")))
    for _ in range(3):
        assert rights.allows_any(ALICE, HOST, READ, TOPIC)
        assert not rights.allows_any(ALICE, HOST, Operation.WRITE, TOPIC)
    assert len(decided) == 2
    delta = ImageDelta(acls={topic("orders")})
    rights.apply_delta(image_of(allow("User:alice", Operation.WRITE, topic("orders"))), delta)
    assert not rights.allows_any(ALICE, HOST, READ, TOPIC)
    assert rights.allows_any(ALICE, HOST, Operation.WRITE, TOPIC)


def test_decisions_are_kept_until_an_acl_changes() -> None:
    rights = authorizer(allow("User:alice", READ, topic("orders")))
    assert rights.decide(KEY)
    assert rights.decisions == {KEY: True}
    rights.apply_delta(image_of(), ImageDelta())
    assert rights.decisions == {KEY: True}
    rights.apply_delta(image_of(), ImageDelta(acls={topic("orders")}))
    assert rights.decisions == {}
    assert not rights.decide(KEY)


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DECISIONS_MAX", 10)
    rights = authorizer()
    for number in range(35):
        rights.decide((ALICE, HOST, READ, TOPIC, str(number)))
        assert len(rights.decisions) <= 10


def test_long_names_are_not_kept() -> None:
    rights = authorizer(is_learning=True)
    rights.decide((ALICE, HOST, READ, TOPIC, "x" * 30_000))
    assert rights.decisions == {}
    assert len(rights.observations) == 0
    assert rights.observations.omitted == 1
    assert len(resource_text(TOPIC, "x" * 30_000)) < 400


def test_operations_of_a_resource() -> None:
    rights = authorizer(allow("User:alice", READ, topic("orders")))
    expected = 1 << READ | 1 << Operation.DESCRIBE
    assert rights.operations(ALICE, HOST, TOPIC, "orders") == expected
    assert rights.operations(ALICE, HOST, TOPIC, "orders2") == 0
    assert all_operations(TOPIC) == sum(1 << each for each in OPERATIONS_OF[TOPIC])


def test_learning_allows_everything_and_keeps_what_was_needed() -> None:
    rights = authorizer(
        allow("User:alice", READ, topic("orders")),
        is_learning=True,
        super_users=frozenset({"User:admin"}),
    )
    assert rights.decide(KEY)
    assert rights.decide((ALICE, HOST, Operation.WRITE, TOPIC, "orders"))
    assert rights.decide((Principal("User", "admin"), *KEY[1:]))
    found = {(each.principal, each.operation, each.name) for each in rights.observations}
    assert found == {
        ("User:alice", READ, "orders"),
        ("User:alice", Operation.WRITE, "orders"),
    }
    assert not rights.would_allow("User:alice", HOST, Operation.WRITE, TOPIC, "orders")


def test_learning_knows_the_groups_of_a_user() -> None:
    rights = authorizer(allow("Group:readers", READ, topic("orders")), is_learning=True)
    rights.decide((ALICE._replace(groups=("Group:readers",)), *KEY[1:]))
    rights.decide((Principal("User", "bob"), *KEY[1:]))
    found = {each.principal: rights.would_allow(*each) for each in rights.observations}
    assert found == {"User:alice": True, "User:bob": False}


def test_a_list_is_neither_hidden_nor_kept_while_learning() -> None:
    rights = authorizer(is_learning=True)
    assert rights.is_visible(*KEY)
    assert len(rights.observations) == 0


def test_observations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.security.acl.observation.ROWS_MAX", 3)
    table = Observations()
    for number in range(5):
        table.add("User:alice", HOST, READ, TOPIC, str(number))
    table.add("User:alice", "10.0.0.9", READ, TOPIC, "0")
    assert len(table) == 3
    assert table.omitted == 2
    assert next(iter(table)).host == "10.0.0.9"


def test_the_text_of_a_resource() -> None:
    assert resource_text(TOPIC, "orders") == "topic:orders"
    assert resource_text(ResourceType.TRANSACTIONAL_ID, "t") == "transactional-id:t"
    assert resource_text(ResourceType.CLUSTER, "kafka-cluster") == "cluster"
