"""`millstream quota`: list, set, delete.

A quota belongs to a user, a client id, both together, or an address. `--user-default` and its
siblings name the default for all users (client ids, addresses) without a quota of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import typer

from millstream.cli.quota.quota_admin import (
    OPTIONS,
    Entity,
    alter_quotas,
    entity_text,
    find_quotas,
    quota_text,
)
from millstream.cli.support.cluster_connection import connected_cluster
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import EXIT_CODES_HELP, CommandError, ExitCode, guarded
from millstream.cli.support.option import DryRunOption
from millstream.cli.support.quantity import ByteRate, Rate, byte_rate_option, rate_option
from millstream.cli.support.terminal import JsonOption, note, print_json, print_table
from millstream.model.bootstrap import SERVERS_DEFAULT

app = typer.Typer(no_args_is_help=True, help="List, set and delete quotas of clients.")

_UserOption: TypeAlias = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="The user, such as alice.")
]
_UserDefaultOption: TypeAlias = Annotated[
    bool, typer.Option("--user-default", help="All users without a quota of their own.")
]
_ClientIdOption: TypeAlias = Annotated[
    str | None, typer.Option("--client-id", metavar="ID", help="The client.id of clients.")
]
_ClientIdDefaultOption: TypeAlias = Annotated[
    bool, typer.Option("--client-id-default", help="All client ids without a quota of their own.")
]
_IpOption: TypeAlias = Annotated[
    str | None, typer.Option("--ip", metavar="ADDRESS", help="The address of clients.")
]
_IpDefaultOption: TypeAlias = Annotated[
    bool, typer.Option("--ip-default", help="All addresses without a quota of their own.")
]


@app.command("list", epilog=EXIT_CODES_HELP)
@guarded
def list_quotas(
    user: _UserOption = None,
    user_default: _UserDefaultOption = False,
    client_id: _ClientIdOption = None,
    client_id_default: _ClientIdDefaultOption = False,
    ip: _IpOption = None,
    ip_default: _IpDefaultOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """List quotas, by default all."""
    entity = _entity(user, user_default, client_id, client_id_default, ip, ip_default)
    with connected_cluster(servers, properties, timeout) as cluster:
        found = find_quotas(cluster, entity)
    if as_json:
        print_json(
            [{**_names(each), "quotas": dict(sorted(quotas.items()))} for each, quotas in found]
        )
    elif found:
        print_table(
            ["ENTITY", "QUOTA", "VALUE"],
            [
                (entity_text(each), name, quota_text(name, value))
                for each, quotas in found
                for name, value in sorted(quotas.items())
            ],
            right=("VALUE",),
        )
    else:
        note("No quotas match.")


@app.command("set", epilog=EXIT_CODES_HELP)
@guarded
def set_quotas(
    produce: Annotated[
        ByteRate | None,
        byte_rate_option("--produce", help="Bytes of Produce requests (producer_byte_rate)."),
    ] = None,
    fetch: Annotated[
        ByteRate | None,
        byte_rate_option("--fetch", help="Bytes of fetched records (consumer_byte_rate)."),
    ] = None,
    request_percentage: Annotated[
        str | None,
        typer.Option(
            "--request-percentage",
            metavar="PERCENT",
            help="Share of the broker's time, such as 50%; 100% is all of it.",
        ),
    ] = None,
    mutations: Annotated[
        Rate | None,
        rate_option(
            "--mutations",
            help="Partitions created and deleted per second (controller_mutation_rate).",
        ),
    ] = None,
    connections: Annotated[
        Rate | None,
        rate_option(
            "--connections", help="New connections of an address (connection_creation_rate)."
        ),
    ] = None,
    user: _UserOption = None,
    user_default: _UserDefaultOption = False,
    client_id: _ClientIdOption = None,
    client_id_default: _ClientIdDefaultOption = False,
    ip: _IpOption = None,
    ip_default: _IpDefaultOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Set quotas of a user, a client id or an address. Other quotas stay."""
    entity = _required(_entity(user, user_default, client_id, client_id_default, ip, ip_default))
    changes: dict[str, float | None] = {
        "producer_byte_rate": _whole(produce),
        "consumer_byte_rate": _whole(fetch),
        "request_percentage": _percentage(request_percentage),
        "controller_mutation_rate": mutations,
        "connection_creation_rate": _whole(connections),
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes:
        raise CommandError(ExitCode.USAGE, f"give at least one of {', '.join(OPTIONS)}.")
    with connected_cluster(servers, properties, timeout) as cluster:
        alter_quotas(cluster, entity, changes, is_dry=dry_run)
    _report(entity, changes, "set", dry_run=dry_run, as_json=as_json)


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def delete(
    quotas: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUOTA...]", help="Such as producer_byte_rate; by default all of the entity."
        ),
    ] = None,
    user: _UserOption = None,
    user_default: _UserDefaultOption = False,
    client_id: _ClientIdOption = None,
    client_id_default: _ClientIdDefaultOption = False,
    ip: _IpOption = None,
    ip_default: _IpDefaultOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Delete quotas of a user, a client id or an address."""
    entity = _required(_entity(user, user_default, client_id, client_id_default, ip, ip_default))
    with connected_cluster(servers, properties, timeout) as cluster:
        present = next(
            (found for each, found in find_quotas(cluster, entity) if each == entity), {}
        )
        names = list(quotas or present)
        missing = [name for name in names if name not in present]
        if missing or not names:
            what = f"quota {missing[0]}" if missing else "quota"
            raise CommandError(ExitCode.NOT_FOUND, f"{entity_text(entity)} has no {what}.")
        changes = dict.fromkeys(names)
        alter_quotas(cluster, entity, changes, is_dry=dry_run)
    _report(entity, changes, "deleted", dry_run=dry_run, as_json=as_json)


def _entity(
    user: str | None,
    user_default: bool,
    client_id: str | None,
    client_id_default: bool,
    ip: str | None,
    ip_default: bool,
) -> Entity:
    entity: dict[str, str | None] = {}
    for kind, name, is_default in (
        ("user", user, user_default),
        ("client-id", client_id, client_id_default),
        ("ip", ip, ip_default),
    ):
        if name is not None and is_default:
            raise CommandError(ExitCode.USAGE, f"give --{kind} or --{kind}-default, not both.")
        if name is not None or is_default:
            entity[kind] = name
    return entity


def _required(entity: Entity) -> Entity:
    if not entity:
        raise CommandError(
            ExitCode.USAGE,
            "give --user, --client-id or --ip, or --user-default, --client-id-default or"
            " --ip-default.",
        )
    return entity


def _whole(rate: float | None) -> float | None:
    return None if rate is None else float(round(rate))


def _percentage(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text.strip().removesuffix("%"))
    except ValueError:
        raise CommandError(
            ExitCode.USAGE, f"--request-percentage: {text!r} is not a percentage: write 50%."
        ) from None


def _names(entity: Entity) -> dict[str, Any]:
    """Return the names of an entity for JSON. An empty name is the default of the type."""
    named = {kind: "" if name is None else name for kind, name in entity.items()}
    return {
        "user": named.get("user"),
        "client_id": named.get("client-id"),
        "ip": named.get("ip"),
    }


def _report(
    entity: Entity,
    changes: Mapping[str, float | None],
    what: str,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    if as_json:
        result = "valid" if dry_run else what
        keys = _names(entity)
        print_json([{**keys, "quota": name, "result": result} for name in sorted(changes)])
        return
    for name, value in sorted(changes.items()):
        text = what if value is None else f"{what} to {quota_text(name, value)}"
        typer.echo(f"{entity_text(entity)}: {name}: {'valid' if dry_run else text}")
    if dry_run:
        note("A dry run: nothing was changed.")
