"""`millstream tls init`: make certificates, and print the settings that use them.

`security/local_authority.py` owns keys, certificates and files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from millstream.cli.support.failure import EXIT_CODES_HELP, CommandError, ExitCode, guarded
from millstream.cli.support.terminal import JsonOption, note, print_json

app = typer.Typer(
    no_args_is_help=True, help="Make certificates for TLS, for development and private networks."
)

_BROKER: Final = "broker"
_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_RESERVED: Final = frozenset({"ca", _BROKER})


@app.callback()
def group() -> None:
    """Keep `init` a subcommand: an app with a single command would become that command."""


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder for all files.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="A host name or address of the broker, beside localhost. Repeatable.",
        ),
    ] = None,
    clients: Annotated[
        list[str] | None,
        typer.Option(
            "--client", metavar="NAME", help="A client that gets a certificate. Repeatable."
        ),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, max=3650, help="How long certificates are valid.")
    ] = 365,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace the certificates that exist. The authority stays."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make an authority, and certificates for a broker and for clients.

    What exists already stays as it is, so the command may be repeated with more clients.
    """
    from millstream.security.local_authority import LocalAuthority

    names = list(dict.fromkeys(clients or ()))
    for name in names:
        if not _NAME.match(name) or name in _RESERVED:
            raise CommandError(
                ExitCode.USAGE,
                f"--client {name!r}: expected letters, digits, '.', '_' and '-', other than"
                f" {' and '.join(sorted(_RESERVED))}",
            )
    folder = folder.absolute()
    try:
        authority = LocalAuthority.open_or_create(folder)
        made = [f"{folder}/ca.pem"] if authority.is_new else []
        if force or not (folder / f"{_BROKER}.pem").exists():
            authority.issue(
                _BROKER, hosts=list(dict.fromkeys((*_HOSTS, *(hosts or ())))), days=days
            )
            made.append(f"{folder}/{_BROKER}.pem")
        elif hosts:
            note(f"{folder}/{_BROKER}.pem exists: --host changes nothing without --force")
        for name in names:
            if force or not (folder / f"{name}.pem").exists():
                authority.issue(name, days=days)
                made.append(f"{folder}/{name}.pem")
    except (OSError, ValueError) as error:
        raise CommandError(ExitCode.FAILED, f"cannot write to {folder}: {error}") from None
    report = _report(folder, names, made)
    if as_json:
        print_json(report)
    else:
        _print(report)


def _report(folder: Path, clients: list[str], made: list[str]) -> dict[str, object]:
    """Return what was made, and the settings for the broker and for each client."""
    serve = {
        "ssl.keystore.location": f"{folder}/{_BROKER}.pem",
        "ssl.truststore.location": f"{folder}/ca.pem",
    }
    if clients:
        serve["ssl.client.auth"] = "required"
    return {
        "folder": str(folder),
        "authority": f"{folder}/ca.pem",
        "made": made,
        "serve": serve,
        "client": {"security.protocol": "SSL", "ssl.ca.location": f"{folder}/ca.pem"},
        "clients": [
            {
                "name": name,
                "principal": f"User:CN={name},O=Millstream",
                "file": f"{folder}/{name}.pem",
                "properties": {
                    "security.protocol": "SSL",
                    "ssl.ca.location": f"{folder}/ca.pem",
                    "ssl.certificate.location": f"{folder}/{name}.crt",
                    "ssl.key.location": f"{folder}/{name}.key",
                },
            }
            for name in clients
        ],
    }


def _print(report: dict[str, object]) -> None:
    made, serve = report["made"], report["serve"]
    assert isinstance(made, list)
    assert isinstance(serve, dict)
    for file in made:
        typer.echo(f"made {file}")
    if not made:
        typer.echo("everything exists already")
    typer.echo("\nStart a broker with TLS:\n")
    flags = " ".join(f"--set {name}={value}" for name, value in serve.items())
    typer.echo(f"  millstream serve --listen SSL://localhost:9093 {flags}")
    typer.echo("\nProperties of clients:\n")
    clients = report["clients"]
    assert isinstance(clients, list)
    if not clients:
        _print_properties(report["client"])
    for client in clients:
        typer.echo(f"  # {client['name']} is {client['principal']}")
        _print_properties(client["properties"])
        typer.echo(
            f"  # Java: ssl.keystore.type=PEM ssl.keystore.location={client['file']}"
            f" ssl.truststore.type=PEM ssl.truststore.location={report['authority']}"
        )


def _print_properties(properties: object) -> None:
    assert isinstance(properties, dict)
    for name, value in properties.items():
        typer.echo(f"  {name}={value}")
