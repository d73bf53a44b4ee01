"""The ACLs of a cluster, indexed for decisions. Pure.

A decision looks at the entries of the literal pattern with the resource's name, of the literal
pattern `*`, and of every prefixed pattern that the name starts with. A DENY entry that matches
decides before any ALLOW entry. Without a match the answer is no; it is UNDECIDED if no pattern
applies to the resource at all, so that `allow.everyone.if.no.acl.found` can decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, TypeAlias

from millstream.metadata.security_record import AclEntry, AclResource
from millstream.model.acl import IMPLIED_BY, WILDCARD, Operation, PatternType, Permission
from millstream.model.principal import WILDCARD_PRINCIPAL

Entries: TypeAlias = tuple[AclEntry, ...]

_NONE: Final[frozenset[Operation]] = frozenset()


class Decision(Enum):
    """What the ACLs say about one operation."""

    ALLOWED = "allowed"
    DENIED = "denied"
    #: No ACL of any principal applies to the resource.
    UNDECIDED = "undecided"


class _TypeRules:
    """The patterns of one resource type."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, Entries] = {}
        self.prefixed: dict[str, Entries] = {}
        #: How many prefixed patterns have names of each length.
        self.lengths: dict[int, int] = {}

    def put(self, resource: AclResource, entries: Entries | None) -> None:
        name = resource.name
        is_prefixed = resource.pattern_type == PatternType.PREFIXED
        patterns = self.prefixed if is_prefixed else self.literal
        before = patterns.pop(name, None)
        if entries:
            patterns[name] = entries
        if is_prefixed and (before is None) != (not entries):
            count = self.lengths.get(len(name), 0) + (1 if entries else -1)
            if count:
                self.lengths[len(name)] = count
            else:
                del self.lengths[len(name)]

    def applying(self, name: str) -> Iterator[Entries]:
        """Yield the entries of each pattern that applies to a resource."""
        found = self.literal.get(name)
        if found is not None:
            yield found
        if name != WILDCARD and (found := self.literal.get(WILDCARD)) is not None:
            yield found
        for length in self.lengths:
            if length <= len(name) and (found := self.prefixed.get(name[:length])) is not None:
                yield found


class RuleSet:
    """All ACLs. `put` follows the metadata; the other methods decide."""

    __slots__ = ("_types",)

    def __init__(self, acls: Mapping[AclResource, Entries] | None = None) -> None:
        self._types: defaultdict[int, _TypeRules] = defaultdict(_TypeRules)
        for resource, entries in (acls or {}).items():
            self.put(resource, entries)

    def put(self, resource: AclResource, entries: Entries | None) -> None:
        """Replace the entries of a pattern; None or no entries remove the pattern."""
        self._types[resource.resource_type].put(resource, entries)

    def decide(
        self, principal: str, host: str, operation: Operation, resource_type: int, name: str
    ) -> Decision:
        """Decide one operation on the resource with this name."""
        is_allowed = applies = False
        for entries in self._types[resource_type].applying(name):
            applies = True
            for entry in entries:
                if not _is_for(entry, principal, host):
                    continue
                if entry.permission == Permission.ALLOW:
                    is_allowed = is_allowed or _allows(entry.operation, operation)
                elif entry.operation in (operation, Operation.ALL):
                    return Decision.DENIED
        if is_allowed:
            return Decision.ALLOWED
        return Decision.DENIED if applies else Decision.UNDECIDED

    def allows_any(
        self, principal: str, host: str, operation: Operation, resource_type: int
    ) -> bool:
        """Return whether the principal may do this to at least one resource of the type (KIP-679).

        Implied operations do not count, as in Kafka."""
        rules = self._types[resource_type]
        allowed: list[tuple[str, bool]] = []
        denied_names: set[str] = set()
        denied_prefixes: set[str] = set()
        for patterns, is_prefixed in ((rules.literal, False), (rules.prefixed, True)):
            for name, entries in patterns.items():
                found = set(_permissions(entries, principal, host, operation))
                if Permission.DENY in found:
                    if name == WILDCARD and not is_prefixed:
                        return False
                    (denied_prefixes if is_prefixed else denied_names).add(name)
                if Permission.ALLOW in found:
                    allowed.append((name, is_prefixed))
        for name, is_prefixed in allowed:
            if not is_prefixed and name == WILDCARD:
                return True
            if not is_prefixed and name in denied_names:
                continue
            if not any(name.startswith(prefix) for prefix in denied_prefixes):
                return True
        return False


def _permissions(
    entries: Iterable[AclEntry], principal: str, host: str, operation: Operation
) -> Iterator[int]:
    for entry in entries:
        if _is_for(entry, principal, host) and entry.operation in (operation, Operation.ALL):
            yield entry.permission


def _is_for(entry: AclEntry, principal: str, host: str) -> bool:
    return entry.principal in (principal, WILDCARD_PRINCIPAL) and entry.host in (host, WILDCARD)


def _allows(allowed: int, wanted: Operation) -> bool:
    """Return whether an ALLOW entry for one operation allows another."""
    return allowed in (wanted, Operation.ALL) or allowed in IMPLIED_BY.get(wanted, _NONE)
