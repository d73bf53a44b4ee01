"""Brokers that take the principal of a client from its client id, without authentication.

    with PrincipalServerSet(tmp_path, count=1) as brokers, brokers.client(1, "as-alice") as client:
        client.call(...)    # as User:alice

A client id without the prefix is ANONYMOUS, as in connections between the brokers, and a super
user. The brokers have an authorizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from harness.in_process.server_set import ServerSet, _Server
from harness.process.broker_process import wait_until
from millstream.broker.context import Services
from millstream.broker.session import Session
from millstream.metadata.security_record import AclResource
from millstream.model.acl import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from millstream.model.principal import ANONYMOUS, USER, Principal
from millstream.net.connection import Connection
from millstream.wire.framing import parse_request_header
from millstream.wire.messages.create_acls import CreateAclsRequest

PREFIX: Final = "as-"


class _PrincipalSession(Session):
    """A session whose principal follows the client id of each request."""

    __slots__ = ()

    def receive(self, frame: memoryview) -> None:
        client_id = parse_request_header(frame).client_id or ""
        is_named = client_id.startswith(PREFIX)
        name = client_id.removeprefix(PREFIX)
        self._client.principal = Principal(USER, name) if is_named else ANONYMOUS
        super().receive(frame)


class _PrincipalServer(_Server):
    def _make_session(self, services: Services, listener: str, connection: Connection) -> Session:
        session = super()._make_session(services, listener, connection)
        session.__class__ = _PrincipalSession
        return session


class PrincipalServerSet(ServerSet):
    """Brokers with an authorizer. The name of a setting has underscores instead of dots."""

    server_class = _PrincipalServer

    def __init__(self, folder: Path, count: int = 3, **settings: str) -> None:
        authorizer = {
            "authorizer_class_name": "millstream",
            "super_users": "User:ANONYMOUS;User:admin",
        }
        super().__init__(folder, count, **{**authorizer, **settings})

    def grant(
        self,
        name: str,
        operation: Operation,
        resource: AclResource,
        permission: Permission = Permission.ALLOW,
        host: str = "*",
    ) -> None:
        """Create an ACL for a user, and return when all brokers have it."""
        creation = CreateAclsRequest.Creation(
            resource_type=resource.resource_type,
            resource_name=resource.name,
            resource_pattern_type=resource.pattern_type,
            principal=f"User:{name}",
            host=host,
            operation=operation,
            permission_type=permission,
        )
        with self.client(min(self.servers)) as client:
            (row,) = client.call(CreateAclsRequest(creations=[creation])).results
        assert row.error_code == 0, row
        self.wait_for_acls()

    def enforce(self) -> None:
        """Restart the brokers, one by one, with an authorizer that denies."""
        self._settings["authorizer.mode"] = "enforce"
        for node_id in list(self.servers):
            self.stop(node_id)
            self.start(node_id)
        wait_until(lambda: self.ask(self._all_know_each_other), "all brokers to be back")

    def wait_for_acls(self) -> None:
        """Return when all brokers have the same ACLs."""
        wait_until(lambda: self.ask(self._have_same_acls), "all brokers to have the same ACLs")

    def _have_same_acls(self) -> bool:
        found = [server.services.catalog.image.acls for server in self.servers.values()]
        return all(acls == found[0] for acls in found)


def literal(resource_type: ResourceType, name: str = CLUSTER_NAME) -> AclResource:
    return AclResource(resource_type, PatternType.LITERAL, name)


def prefixed(resource_type: ResourceType, name: str) -> AclResource:
    return AclResource(resource_type, PatternType.PREFIXED, name)
