"""`millstream profile`: create, use, list, show, delete. `cli/support/profile.py` owns the file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from millstream.cli.support.completion import complete_profiles
from millstream.cli.support.connection import parse_pairs
from millstream.cli.support.failure import EXIT_CODES_HELP, CommandError, ExitCode, guarded
from millstream.cli.support.option import YesOption
from millstream.cli.support.outcome import confirm
from millstream.cli.support.profile import Profile, Profiles, check_name, profile_file
from millstream.cli.support.terminal import JsonOption, note, print_json, print_table

app = typer.Typer(
    no_args_is_help=True,
    help="Store connections under names, for --profile and MILLSTREAM_PROFILE.",
)

#: The client property of each security option.
_SECURITY: Final = {
    "security_protocol": "security.protocol",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_username": "sasl.username",
    "sasl_password": "sasl.password",
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",
}
#: The value of a password option that asks for the password, or reads a line of standard input. The
#: arguments of a process are visible to other users of the host.
_ASK: Final = "-"

_NameArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME", autocompletion=complete_profiles)
]


def _security(name: str, metavar: str, text: str) -> Any:
    return typer.Option(
        f"--{name.replace('_', '-')}", metavar=metavar, help=text, rich_help_panel="Security"
    )


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the profile.")],
    servers: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server", "-b", metavar="HOST:PORT,...", help="Brokers to connect to first."
        ),
    ] = None,
    schema_registry: Annotated[
        str | None,
        typer.Option("--schema-registry", metavar="URL", help="The address of a schema registry."),
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            "-X",
            metavar="KEY=VALUE",
            help="A librdkafka client property. Repeatable.",
        ),
    ] = None,
    security_protocol: Annotated[
        str | None,
        _security("security_protocol", "NAME", "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."),
    ] = None,
    sasl_mechanism: Annotated[
        str | None, _security("sasl_mechanism", "NAME", "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.")
    ] = None,
    sasl_username: Annotated[str | None, _security("sasl_username", "NAME", "The user.")] = None,
    sasl_password: Annotated[
        str | None,
        _security("sasl_password", "TEXT", "The password; - asks for it, or reads standard input."),
    ] = None,
    ssl_cafile: Annotated[
        str | None, _security("ssl_cafile", "FILE", "Certificates of trusted authorities.")
    ] = None,
    ssl_certfile: Annotated[
        str | None, _security("ssl_certfile", "FILE", "The client's certificate.")
    ] = None,
    ssl_keyfile: Annotated[
        str | None, _security("ssl_keyfile", "FILE", "The key of the client's certificate.")
    ] = None,
    ssl_password: Annotated[
        str | None, _security("ssl_password", "TEXT", "The password of the key; likewise.")
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Also make it the current profile.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a profile with this name.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Store a connection under a name.

    The first profile becomes the current one, which commands use by default.
    """
    given = {
        "security_protocol": security_protocol,
        "sasl_mechanism": sasl_mechanism,
        "sasl_username": sasl_username,
        "sasl_password": _password(sasl_password, "Password"),
        "ssl_cafile": _file("--ssl-cafile", ssl_cafile),
        "ssl_certfile": _file("--ssl-certfile", ssl_certfile),
        "ssl_keyfile": _file("--ssl-keyfile", ssl_keyfile),
        "ssl_password": _password(ssl_password, "Password of the key"),
    }
    check_name(name)
    profiles = Profiles.load()
    is_known = name in profiles.profiles
    if is_known and not replace:
        raise CommandError(
            ExitCode.EXISTS, f"profile {name!r} exists already: --replace overwrites it."
        )
    chosen = parse_pairs(properties or (), "--property")
    chosen |= {_SECURITY[key]: value for key, value in given.items() if value is not None}
    profiles.profiles[name] = Profile(servers, schema_registry, chosen)
    if use or profiles.current is None:
        profiles.current = name
    profiles.save()
    _report(name, "replaced" if is_known else "created", as_json)
    if profiles.current == name:
        note(f"Commands connect with profile {name} by default.")


def _file(option: str, given: str | None) -> str | None:
    """Return the absolute path: commands that use the profile run in any directory."""
    if given is None:
        return None
    path = Path(given).absolute()
    if not path.exists():
        raise CommandError(
            ExitCode.NOT_FOUND, f"{option} {given!r} does not exist: give a PEM file."
        )
    return str(path)


def _password(given: str | None, prompt: str) -> str | None:
    if given != _ASK:
        return given
    if sys.stdin.isatty():
        return str(typer.prompt(prompt, hide_input=True, err=True))
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise CommandError(ExitCode.USAGE, "standard input has no password.")
    return line


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def use(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", autocompletion=complete_profiles)
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no profile by default.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Select the profile that commands use by default."""
    if (name is None) != none:
        raise CommandError(ExitCode.USAGE, "give one profile, or --none.")
    profiles = Profiles.load()
    if name is not None:
        profiles.find(name)
    profiles.current = name
    profiles.save()
    if as_json:
        print_json({"profile": name, "result": "selected"})
    else:
        typer.echo("no profile: selected" if name is None else f"{name}: selected")


@app.command("list", epilog=EXIT_CODES_HELP)
@guarded
def list_profiles(as_json: JsonOption = False) -> None:
    """List profiles. Passwords are masked."""
    profiles = Profiles.load()
    rows = [_row(profiles, name) for name in profiles.names()]
    if as_json:
        print_json(rows)
    elif rows:
        cells = [
            (
                row["profile"],
                "yes" if row["current"] else "",
                row["bootstrap_servers"] or "-",
                row["properties"].get("security.protocol", "PLAINTEXT"),
                row["schema_registry"] or "-",
            )
            for row in rows
        ]
        print_table(["PROFILE", "CURRENT", "BROKERS", "SECURITY", "SCHEMA REGISTRY"], cells)
    else:
        note("There are no profiles: `millstream profile create NAME` creates one.")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The profile; by default the current one.",
            autocompletion=complete_profiles,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a profile. Passwords are masked."""
    profiles = Profiles.load()
    chosen = name or profiles.current
    if chosen is None:
        raise CommandError(
            ExitCode.NOT_FOUND, "no profile is current: `millstream profile use NAME` selects one."
        )
    profiles.find(chosen)
    row = _row(profiles, chosen)
    if as_json:
        print_json(row)
        return
    typer.echo(f"profile            {row['profile']}{' (current)' if row['current'] else ''}")
    typer.echo(f"bootstrap servers  {row['bootstrap_servers'] or '-'}")
    typer.echo(f"schema registry    {row['schema_registry'] or '-'}")
    for key, value in row["properties"].items():
        typer.echo(f"property           {key}={value}")
    typer.echo(f"file               {profile_file()}")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def delete(name: _NameArgument, yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Delete a profile."""
    profiles = Profiles.load()
    profiles.find(name)
    if not yes:
        confirm(f"Delete profile {name}?", "deleting", "nothing was deleted.")
    del profiles.profiles[name]
    if profiles.current == name:
        profiles.current = None
    profiles.save()
    _report(name, "deleted", as_json)


def _report(name: str, result: str, as_json: bool) -> None:
    if as_json:
        print_json({"profile": name, "result": result})
    else:
        typer.echo(f"{name}: {result}")


def _row(profiles: Profiles, name: str) -> dict[str, Any]:
    return {
        "profile": name,
        "current": name == profiles.current,
        **profiles.profiles[name].masked(),
    }
