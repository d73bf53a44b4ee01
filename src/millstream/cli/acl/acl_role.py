"""`millstream acl grant` and `revoke`: roles as named sets of ACLs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from millstream.cli.acl import acl_option as option
from millstream.cli.acl.acl_change import create_and_report, delete_and_report
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import guarded
from millstream.cli.support.option import YesOption
from millstream.cli.support.terminal import JsonOption
from millstream.model.acl import label
from millstream.model.bootstrap import SERVERS_DEFAULT
from millstream.security.acl.role import Role, parse_pattern, rules_of

if TYPE_CHECKING:
    from millstream.client.admin import Acl

_RoleOption: TypeAlias = Annotated[
    Role,
    typer.Option(
        "--role",
        case_sensitive=False,
        help="reader, writer, worker (a Millstream worker), operator (manages topics, reads no"
        " records) or admin.",
    ),
]
_PrincipalOption: TypeAlias = Annotated[
    list[str],
    typer.Option("--principal", metavar="PRINCIPAL", help="Such as User:alice. Repeatable."),
]
_NamesArgument: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...",
        help="A name of topics, groups and transactional ids. A trailing * means a prefix.",
    ),
]


@guarded
def grant(
    names: _NamesArgument,
    role: _RoleOption,
    principals: _PrincipalOption,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Give principals a role: create the ACLs of the role."""
    acls = _acls(role, principals, names)
    create_and_report(Connection(servers, properties, timeout), acls, as_json=as_json)


@guarded
def revoke(
    names: _NamesArgument,
    role: _RoleOption,
    principals: _PrincipalOption,
    yes: YesOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Take a role from principals: delete the ACLs of the role.

    An ACL that another role of the principal has too is deleted as well."""
    from millstream.client.admin import AclFilter

    connection = Connection(servers, properties, timeout)
    with connection.failing():
        admin = connection.open_admin()
        found = {
            acl: None
            for wanted in _acls(role, principals, names)
            for acl in admin.list_acls(AclFilter.exactly(wanted))
        }
    delete_and_report(connection, admin, list(found), is_confirmed=yes, as_json=as_json)


def _acls(role: Role, principals: Sequence[str], names: Sequence[str]) -> list[Acl]:
    from millstream.client.admin import Acl

    found = {
        Acl(
            principal=option.check_principal(principal),
            operation=label(rule.operation),
            resource_type=label(rule.resource_type),
            resource_name=rule.pattern.name,
            pattern_type=label(rule.pattern.pattern_type),
        ): None
        for principal in principals
        for name in names
        for rule in rules_of(role, parse_pattern(name))
    }
    return list(found)
