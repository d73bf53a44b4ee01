"""ACLs as applications and commands see them: `Acl`, and filters of ACLs.

Terms are texts such as `topic`, `prefixed`, `read` and `allow`. Kafka's other spellings
(`TransactionalId`, `IDEMPOTENT_WRITE`) are accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.client.error import UsageError
from millstream.model.acl import (
    Operation,
    PatternType,
    Permission,
    ResourceType,
    TermT,
    label,
    parse_term,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """A rule: whether a principal may do an operation on the resources of a pattern.

    The name of a `literal` pattern is the resource's, or `*` for all resources. A `prefixed`
    pattern applies to all resources whose names begin with its name. The only cluster resource
    is `kafka-cluster`.
    """

    #: Such as `User:alice`, or `User:*` for everyone.
    principal: str
    operation: str
    resource_type: str
    resource_name: str
    pattern_type: str = "literal"
    #: The address of the client, or `*`.
    host: str = "*"
    permission: str = "allow"

    def __post_init__(self) -> None:
        _spell_terms(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Which ACLs to list or delete. None matches everything.

    The pattern type `match` finds every pattern that applies to the resource `resource_name`:
    literal, `*` and prefixed.
    """

    principal: str | None = None
    operation: str = "any"
    resource_type: str = "any"
    resource_name: str | None = None
    pattern_type: str = "any"
    host: str | None = None
    permission: str = "any"

    def __post_init__(self) -> None:
        _spell_terms(self)

    @classmethod
    def exactly(cls, acl: Acl) -> AclFilter:
        """Return the filter of one ACL."""
        return cls(
            principal=acl.principal,
            operation=acl.operation,
            resource_type=acl.resource_type,
            resource_name=acl.resource_name,
            pattern_type=acl.pattern_type,
            host=acl.host,
            permission=acl.permission,
        )


def _spell_terms(owner: Acl | AclFilter) -> None:
    """Replace the terms of an ACL or filter with their one spelling. Raises UsageError."""
    terms = {
        "operation": _spelled(Operation, owner.operation, "operation"),
        "resource_type": _spelled(ResourceType, owner.resource_type, "resource_type"),
        "pattern_type": _spelled(PatternType, owner.pattern_type, "pattern_type"),
        "permission": _spelled(Permission, owner.permission, "permission"),
    }
    for name, text in terms.items():
        # The object is frozen; only its constructor may change it.
        object.__setattr__(owner, name, text)


def _spelled(kind: type[TermT], text: str, name: str) -> str:
    try:
        return label(parse_term(kind, text))
    except ValueError as error:
        raise UsageError(f"{name}={text!r} is not allowed: expected {error}.") from None
