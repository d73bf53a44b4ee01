"""ACLs in short form for tests: `allow("User:alice", READ, topic("orders"))`."""

from __future__ import annotations

from millstream.metadata.security_record import AclEntry, AclResource
from millstream.model.acl import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType

Acl = tuple[AclResource, AclEntry]


def topic(name: str) -> AclResource:
    return AclResource(ResourceType.TOPIC, PatternType.LITERAL, name)


def prefixed(name: str, resource_type: ResourceType = ResourceType.TOPIC) -> AclResource:
    return AclResource(resource_type, PatternType.PREFIXED, name)


def cluster() -> AclResource:
    return AclResource(ResourceType.CLUSTER, PatternType.LITERAL, CLUSTER_NAME)


def allow(principal: str, operation: Operation, resource: AclResource, host: str = "*") -> Acl:
    return resource, AclEntry(principal, host, operation, Permission.ALLOW)


def deny(principal: str, operation: Operation, resource: AclResource, host: str = "*") -> Acl:
    return resource, AclEntry(principal, host, operation, Permission.DENY)


def records(*acls: Acl) -> dict[AclResource, tuple[AclEntry, ...]]:
    found: dict[AclResource, tuple[AclEntry, ...]] = {}
    for resource, entry in acls:
        found[resource] = (*found.get(resource, ()), entry)
    return found
