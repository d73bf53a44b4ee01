"""Filters of ACLs, as in DescribeAcls and DeleteAcls. Pure.

A field that is None, or the ANY of its type, matches everything. The pattern type MATCH finds every
pattern that applies to the resource with the filter's name: the literal pattern, the literal
pattern `*`, and the prefixes of the name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from millstream.metadata.security_record import AclEntry, AclResource
from millstream.model.acl import WILDCARD, Operation, PatternType, Permission, ResourceType
from millstream.security.acl.rule_set import Entries


class AclFilter(NamedTuple):
    """Which ACLs a request asks for."""

    resource_type: int = ResourceType.ANY
    name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    @property
    def problem(self) -> str | None:
        """What is wrong with the filter, as a sentence; None if it is valid."""
        for kind, value in (
            (ResourceType, self.resource_type),
            (PatternType, self.pattern_type),
            (Operation, self.operation),
            (Permission, self.permission),
        ):
            if value not in kind.__members__.values() or value == 0:
                return f"the filter has an unknown {kind.__name__}: {value}"
        return None

    def matches_resource(self, resource: AclResource) -> bool:
        if self.resource_type not in (ResourceType.ANY, resource.resource_type):
            return False
        if self.pattern_type not in (
            PatternType.ANY,
            PatternType.MATCH,
            resource.pattern_type,
        ):
            return False
        if self.name is None or self.name == resource.name:
            return True
        if self.pattern_type != PatternType.MATCH:
            return False
        if resource.pattern_type == PatternType.PREFIXED:
            return self.name.startswith(resource.name)
        return resource.name == WILDCARD

    def matches_entry(self, entry: AclEntry) -> bool:
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )

    def select(
        self, acls: Mapping[AclResource, Entries]
    ) -> Iterator[tuple[AclResource, list[AclEntry]]]:
        """Yield each matching pattern with its matching entries."""
        for resource, entries in acls.items():
            if self.matches_resource(resource):
                found = [entry for entry in entries if self.matches_entry(entry)]
                if found:
                    yield resource, found
