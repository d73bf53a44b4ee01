"""`millstream acl`: create, list, delete.

`grant` and `revoke` are in `cli/acl/acl_role.py`, `learn` in `cli/acl/acl_learn.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.acl import acl_option as option
from millstream.cli.acl.acl_change import create_and_report, delete_and_report
from millstream.cli.acl.acl_learn import learn
from millstream.cli.acl.acl_role import grant, revoke
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import EXIT_CODES_HELP, CommandError, ExitCode, guarded
from millstream.cli.support.option import YesOption
from millstream.cli.support.terminal import JsonOption, note, print_json, print_table
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.client.admin import AclFilter

app = typer.Typer(no_args_is_help=True, help="Create, list and delete ACLs; grant roles; learn.")
app.command("grant", epilog=EXIT_CODES_HELP)(grant)
app.command("revoke", epilog=EXIT_CODES_HELP)(revoke)
app.command("learn", epilog=EXIT_CODES_HELP)(learn)

_PatternOption = Annotated[
    option.StoredPattern,
    typer.Option(
        "--resource-pattern-type",
        case_sensitive=False,
        help="literal: the name, or * for all. prefixed: all names that begin with it.",
    ),
]
_FilterPatternOption = Annotated[
    option.FilterPattern,
    typer.Option(
        "--resource-pattern-type",
        case_sensitive=False,
        help="Only patterns of this type. match: all patterns that apply to the named resource.",
    ),
]


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def create(
    allow: option.AllowOption = None,
    deny: option.DenyOption = None,
    operation: option.OperationOption = None,
    topics: option.TopicOption = None,
    groups: option.GroupOption = None,
    transactional_ids: option.TransactionalIdOption = None,
    users: option.UserOption = None,
    tokens: option.TokenOption = None,
    cluster: option.ClusterOption = False,
    pattern: _PatternOption = option.StoredPattern.LITERAL,
    hosts: option.HostOption = None,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Create ACLs: one for each combination of principal, operation, resource and host."""
    from millstream.client.admin import Acl

    wanted = option.resources(topics, groups, transactional_ids, users, tokens, cluster)
    given = list(option.principals(allow, deny))
    if not wanted or not given:
        raise CommandError(
            ExitCode.USAGE,
            "name a principal (--allow-principal or --deny-principal) and a resource (--topic,"
            " --group, --transactional-id, --user-principal, --delegation-token or --cluster).",
        )
    acls = [
        Acl(
            principal=principal,
            permission=permission,
            operation=each,
            resource_type=resource.resource_type,
            resource_name=resource.name,
            pattern_type=("literal" if resource.resource_type == "cluster" else pattern.value),
            host=host,
        )
        for principal, permission in given
        for resource in wanted
        for each in option.operations(operation, "all")
        for host in hosts or ("*",)
    ]
    create_and_report(Connection(servers, properties, timeout), acls, as_json=as_json)


@app.command("list", epilog=EXIT_CODES_HELP)
@guarded
def list_acls(
    principal: Annotated[
        str | None, typer.Option("--principal", help="Only ACLs of this principal.")
    ] = None,
    operation: option.OperationOption = None,
    topics: option.TopicOption = None,
    groups: option.GroupOption = None,
    transactional_ids: option.TransactionalIdOption = None,
    users: option.UserOption = None,
    tokens: option.TokenOption = None,
    cluster: option.ClusterOption = False,
    pattern: _FilterPatternOption = option.FilterPattern.ANY,
    hosts: option.HostOption = None,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """List ACLs: all of them, or those that the options select."""
    resources = option.resources(topics, groups, transactional_ids, users, tokens, cluster)
    filters = _filters(principal, None, operation, resources, pattern, hosts)
    connection = Connection(servers, properties, timeout)
    with connection.failing():
        admin = connection.open_admin()
        found = {acl: None for each in filters for acl in admin.list_acls(each)}
    rows = sorted(
        (option.row(acl) for acl in found),
        key=lambda row: (row["resource_type"], row["resource_name"], row["principal"]),
    )
    if as_json:
        print_json(rows)
    elif rows:
        print_table(option.HEADINGS, [list(row.values()) for row in rows])
    else:
        note("No ACLs match." if resources or principal else "No ACLs yet.")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def delete(
    allow: option.AllowOption = None,
    deny: option.DenyOption = None,
    operation: option.OperationOption = None,
    topics: option.TopicOption = None,
    groups: option.GroupOption = None,
    transactional_ids: option.TransactionalIdOption = None,
    users: option.UserOption = None,
    tokens: option.TokenOption = None,
    cluster: option.ClusterOption = False,
    pattern: _FilterPatternOption = option.FilterPattern.LITERAL,
    hosts: option.HostOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Delete the ACLs that the options select. Without an operation, ACLs of all operations."""
    resources = option.resources(topics, groups, transactional_ids, users, tokens, cluster)
    given: list[tuple[str | None, str | None]] = [*option.principals(allow, deny)]
    if not resources and not given:
        raise CommandError(ExitCode.USAGE, "name a principal or a resource.")
    filters = [
        each
        for principal, permission in given or [(None, None)]
        for each in _filters(principal, permission, operation, resources, pattern, hosts)
    ]
    connection = Connection(servers, properties, timeout)
    with connection.failing():
        admin = connection.open_admin()
        found = {acl: None for each in filters for acl in admin.list_acls(each)}
    delete_and_report(connection, admin, list(found), is_confirmed=yes, as_json=as_json)


def _filters(
    principal: str | None,
    permission: str | None,
    operation: list[str] | None,
    resources: list[option.Resource],
    pattern: option.FilterPattern,
    hosts: list[str] | None,
) -> list[AclFilter]:
    """Return a filter for each combination of the options."""
    from millstream.client.admin import AclFilter

    wanted: Sequence[option.Resource | None] = resources or [None]
    addresses: Sequence[str | None] = hosts or [None]
    return [
        AclFilter(
            principal=None if principal is None else option.check_principal(principal),
            permission=permission or "any",
            operation=each,
            resource_type="any" if resource is None else resource.resource_type,
            resource_name=None if resource is None else resource.name,
            pattern_type="any" if resource is None else pattern.value,
            host=host,
        )
        for resource in wanted
        for each in option.operations(operation, "any")
        for host in addresses
    ]
