"""`millstream user`: create, list, passwd, delete.

Users have SCRAM credentials in the cluster's metadata. They log in by SCRAM, and by PLAIN where a
listener has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import EXIT_CODES_HELP, CommandError, ExitCode, guarded
from millstream.cli.support.option import YesOption
from millstream.cli.support.outcome import confirm, report
from millstream.cli.support.terminal import JsonOption, note, print_json, print_table
from millstream.cli.user.password import PasswordVariableOption, read_password
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.client.admin import Admin

app = typer.Typer(no_args_is_help=True, help="Create, list and delete users, and set passwords.")

_NameArgument = Annotated[str, typer.Argument(metavar="USER")]
_ITERATIONS_MIN, _ITERATIONS_MAX = 4096, 16_384
_IterationsOption = Annotated[
    int | None,
    typer.Option(
        "--iterations",
        min=_ITERATIONS_MIN,
        max=_ITERATIONS_MAX,
        help="How often the password is hashed.",
    ),
]


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def create(
    name: _NameArgument,
    mechanisms: Annotated[
        list[str] | None,
        typer.Option(
            "--mechanism",
            help="SCRAM-SHA-256 or SCRAM-SHA-512. Repeatable. By default both.",
        ),
    ] = None,
    iterations: _IterationsOption = None,
    password_variable: PasswordVariableOption = None,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Create a user that logs in with a password."""
    options: dict[str, Any] = {}
    if mechanisms:
        options["mechanisms"] = [each.upper() for each in mechanisms]
    if iterations is not None:
        options["iterations"] = iterations
    password = read_password(password_variable)
    connection = Connection(servers, properties, timeout)
    _change(
        connection,
        name,
        lambda admin: admin.create_user(name, password, **options),
        "created",
        as_json,
    )


@app.command("list", epilog=EXIT_CODES_HELP)
@guarded
def list_users(
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """List users, with the mechanisms and iterations of their credentials."""
    connection = Connection(servers, properties, timeout)
    with connection.failing():
        found = connection.open_admin().list_users()
    rows = [
        (name, mechanism, count)
        for name, credentials in sorted(found.items())
        for mechanism, count in credentials.items()
    ]
    if as_json:
        keys = ("user", "mechanism", "iterations")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
    elif rows:
        print_table(["USER", "MECHANISM", "ITERATIONS"], rows, right=("ITERATIONS",))
    else:
        note("There are no users.")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def passwd(
    name: _NameArgument,
    iterations: _IterationsOption = None,
    password_variable: PasswordVariableOption = None,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Change the password of a user, for all mechanisms that the user has.

    Connections that are logged in stay open."""
    password = read_password(password_variable)
    connection = Connection(servers, properties, timeout)
    _change(
        connection,
        name,
        lambda admin: admin.alter_user(name, password, iterations=iterations),
        "changed",
        as_json,
    )


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def delete(
    name: _NameArgument,
    yes: YesOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Delete a user. Connections that are logged in stay open."""
    if not yes:
        confirm(f"Delete the user {name}?", "deleting", "nothing was deleted.")
    connection = Connection(servers, properties, timeout)
    _change(connection, name, lambda admin: admin.delete_user(name), "deleted", as_json)


def _change(
    connection: Connection,
    name: str,
    change: Callable[[Admin], None],
    done: str,
    as_json: bool,
) -> None:
    from millstream.client.error import BrokerError

    failure: CommandError | None = None
    with connection.failing():
        try:
            change(connection.open_admin())
        except BrokerError as error:
            code = {
                "DUPLICATE_RESOURCE": ExitCode.EXISTS,
                "RESOURCE_NOT_FOUND": ExitCode.NOT_FOUND,
            }.get(error.name)
            if code is None:
                raise
            text = "exists" if code is ExitCode.EXISTS else "does not exist"
            failure = CommandError(code, f"user {name!r} {text}.")
    report("user", {name: failure}, done, {}, as_json=as_json)
