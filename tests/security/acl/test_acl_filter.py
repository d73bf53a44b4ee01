"""Filters of ACLs, as DescribeAcls and DeleteAcls use them."""

from __future__ import annotations

import pytest

from millstream.model.acl import Operation, PatternType, Permission, ResourceType
from millstream.security.acl.acl_filter import AclFilter
from security.acl.acl_case import allow, cluster, deny, prefixed, records, topic

ACLS = records(
    allow("User:alice", Operation.READ, topic("orders")),
    deny("User:bob", Operation.READ, topic("orders"), host="10.0.0.1"),
    allow("User:alice", Operation.WRITE, prefixed("ord")),
    allow("User:carol", Operation.ALL, topic("*")),
    allow("User:alice", Operation.DESCRIBE, cluster()),
    allow("User:alice", Operation.READ, topic("orders2")),
)
TOPIC, MATCH = ResourceType.TOPIC, PatternType.MATCH


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (AclFilter(), {"orders", "ord", "*", "kafka-cluster", "orders2"}),
        (AclFilter(TOPIC, "orders", PatternType.LITERAL), {"orders"}),
        (AclFilter(TOPIC, "orders", PatternType.ANY), {"orders"}),
        (AclFilter(TOPIC, "orders", MATCH), {"orders", "ord", "*"}),
        (AclFilter(TOPIC, "ord", PatternType.PREFIXED), {"ord"}),
        (AclFilter(TOPIC, None, PatternType.PREFIXED), {"ord"}),
        (AclFilter(TOPIC, "*", PatternType.LITERAL), {"*"}),
        (AclFilter(TOPIC, "or", MATCH), {"*"}),
        (AclFilter(ResourceType.CLUSTER), {"kafka-cluster"}),
        (AclFilter(principal="User:carol"), {"*"}),
        (AclFilter(host="10.0.0.1"), {"orders"}),
        (AclFilter(operation=Operation.WRITE), {"ord"}),
        (AclFilter(permission=Permission.DENY), {"orders"}),
        (AclFilter(TOPIC, "Orders"), set()),
    ],
)
def test_a_filter_selects(wanted: AclFilter, expected: set[str]) -> None:
    assert {resource.name for resource, _ in wanted.select(ACLS)} == expected
    assert wanted.problem is None


def test_only_matching_entries_are_selected() -> None:
    ((_, entries),) = AclFilter(TOPIC, "orders", principal="User:bob").select(ACLS)
    assert [entry.principal for entry in entries] == ["User:bob"]


@pytest.mark.parametrize(
    "wanted",
    [
        AclFilter(resource_type=0),
        AclFilter(resource_type=99),
        AclFilter(pattern_type=0),
        AclFilter(operation=77),
        AclFilter(permission=0),
    ],
)
def test_unknown_terms_are_a_problem(wanted: AclFilter) -> None:
    assert "unknown" in (wanted.problem or "")
