"""The terms of access control lists: resource types, pattern types, operations and permissions.

The numbers are the protocol's, and the labels are those of Kafka's tools. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, TypeVar

from millstream.model.error import ErrorCode

#: Stands for every principal name, host or resource name.
WILDCARD: Final = "*"
#: The only name of a resource of the type CLUSTER.
CLUSTER_NAME: Final = "kafka-cluster"


class ResourceType(IntEnum):
    """What an ACL protects. UNKNOWN and ANY occur in filters only."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name of a resource pattern is compared. Stored ACLs are LITERAL or PREFIXED."""

    UNKNOWN = 0
    ANY = 1
    #: In filters: every pattern that applies to the resource with the filter's name.
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What a principal does with a resource. UNKNOWN and ANY occur in filters only."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Whether an ACL allows or denies. UNKNOWN and ANY occur in filters only."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


#: The operations of each resource type, as in Kafka: `authorized_operations` shows these only.
OPERATIONS_OF: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (
        Operation.WRITE,
        Operation.DESCRIBE,
        Operation.TWO_PHASE_COMMIT,
    ),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}

#: The error code of a denied operation on a resource.
DENIAL_CODES: Final[Mapping[ResourceType, ErrorCode]] = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}

#: An ALLOW ACL for one of these operations also allows the operation that is the key. A DENY ACL
#: implies nothing.
IMPLIED_BY: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}

TermT = TypeVar("TermT", ResourceType, PatternType, Operation, Permission)


def label(term: IntEnum) -> str:
    """Return a term as commands and JSON show it: `transactional-id`, `idempotent-write`."""
    return term.name.lower().replace("_", "-")


def parse_term(kind: type[TermT], text: str) -> TermT:
    """Parse a term in any of Kafka's spellings: `IdempotentWrite`, `IDEMPOTENT_WRITE`,
    `idempotent-write`. Raises ValueError with the allowed terms."""
    wanted = text.replace("_", "").replace("-", "").upper()
    for term in kind:
        if term.value and term.name.replace("_", "") == wanted:
            return term
    raise ValueError("one of " + ", ".join(label(term) for term in kind if term.value))
