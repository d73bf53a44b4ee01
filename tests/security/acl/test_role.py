"""Roles as sets of ACLs, and the patterns of names."""

from __future__ import annotations

import pytest

from millstream.model.acl import Operation, PatternType, ResourceType
from millstream.security.acl.role import Pattern, Role, parse_pattern, rules_of


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("orders", Pattern(PatternType.LITERAL, "orders")),
        ("orders-*", Pattern(PatternType.PREFIXED, "orders-")),
        ("*", Pattern(PatternType.LITERAL, "*")),
        ("or*ders", Pattern(PatternType.LITERAL, "or*ders")),
    ],
)
def test_patterns(text: str, pattern: Pattern) -> None:
    assert parse_pattern(text) == pattern


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("name", ["orders", "orders-*"])
def test_a_role_for_some_names_changes_nothing_else(role: Role, name: str) -> None:
    pattern = parse_pattern(name)
    for rule in rules_of(role, pattern):
        if rule.resource_type is ResourceType.CLUSTER:
            assert rule.operation in (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
        elif role is Role.WORKER:
            assert rule.pattern.name in (pattern.name, f"{name}.", f"{name}-")
        else:
            assert rule.pattern == pattern


def test_a_reader_writes_nothing_and_an_operator_reads_no_records() -> None:
    everything = parse_pattern("*")
    reader = {(rule.resource_type, rule.operation) for rule in rules_of(Role.READER, everything)}
    assert reader == {
        (ResourceType.TOPIC, Operation.READ),
        (ResourceType.GROUP, Operation.READ),
    }
    operator = {rule.operation for rule in rules_of(Role.OPERATOR, everything)}
    assert not operator & {Operation.READ, Operation.WRITE, Operation.ALL}


def test_only_an_admin_of_everything_has_the_cluster() -> None:
    clusters = [
        rule.operation
        for rule in rules_of(Role.ADMIN, parse_pattern("*"))
        if rule.resource_type is ResourceType.CLUSTER
    ]
    assert clusters == [Operation.ALL]
