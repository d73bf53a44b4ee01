"""Roles: named sets of ACLs for the usual kinds of clients. Pure.

    reader     Read on topics; Read on groups with the same name or prefix
    writer     Write on topics; Write on transactional ids with the same name or prefix
    operator   what an operator needs to look after topics and groups, without reading records
    admin      everything on topics, groups and transactional ids of the pattern; with `*` also
               everything on the cluster

A role is no record of its own: granting it creates its ACLs, and revoking it deletes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from millstream.model.acl import CLUSTER_NAME, WILDCARD, Operation, PatternType, ResourceType


class Role(StrEnum):
    """The roles."""

    READER = "reader"
    WRITER = "writer"
    OPERATOR = "operator"
    ADMIN = "admin"


class Pattern(NamedTuple):
    """The names that a role applies to."""

    pattern_type: PatternType
    name: str


class RoleRule(NamedTuple):
    """One ACL of a role, which allows from every host."""

    resource_type: ResourceType
    pattern: Pattern
    operation: Operation


_TOPIC, _GROUP = ResourceType.TOPIC, ResourceType.GROUP
_TXN, _CLUSTER = ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER
_NAMED = {
    Role.READER: ((_TOPIC, Operation.READ), (_GROUP, Operation.READ)),
    Role.WRITER: ((_TOPIC, Operation.WRITE), (_TXN, Operation.WRITE)),
    Role.OPERATOR: (
        (_TOPIC, Operation.CREATE),
        (_TOPIC, Operation.ALTER),
        (_TOPIC, Operation.ALTER_CONFIGS),
        (_GROUP, Operation.DESCRIBE),
        (_TXN, Operation.DESCRIBE),
    ),
    Role.ADMIN: ((_TOPIC, Operation.ALL), (_GROUP, Operation.ALL), (_TXN, Operation.ALL)),
}
_ON_CLUSTER = {
    Role.OPERATOR: (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS),
    Role.ADMIN: (Operation.ALL,),
}


def parse_pattern(text: str) -> Pattern:
    """Return the pattern of a name: a trailing `*` means a prefix, and `*` alone all names."""
    if text == WILDCARD or not text.endswith(WILDCARD):
        return Pattern(PatternType.LITERAL, text)
    return Pattern(PatternType.PREFIXED, text.removesuffix(WILDCARD))


def rules_of(role: Role, pattern: Pattern) -> Iterator[RoleRule]:
    """Yield the ACLs of a role for one pattern."""
    for resource_type, operation in _NAMED[role]:
        yield RoleRule(resource_type, pattern, operation)
    # A role for some topics gives no right on the whole cluster beyond seeing it.
    if role is Role.OPERATOR or pattern == Pattern(PatternType.LITERAL, WILDCARD):
        cluster = Pattern(PatternType.LITERAL, CLUSTER_NAME)
        for operation in _ON_CLUSTER.get(role, ()):
            yield RoleRule(_CLUSTER, cluster, operation)
