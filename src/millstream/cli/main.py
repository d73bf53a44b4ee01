"""The command `millstream`: its subcommands and its entry point.

Only the requested subcommand is imported. Subcommand modules import the client, rich and the broker
inside the functions that need them, so that `millstream` starts quickly.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import typer

from millstream.cli.support.command import use_command_class
from millstream.cli.support.failure import EXIT_CODES_HELP
from millstream.cli.support.terminal import JsonOption, print_json

#: The module of each subcommand, in the order of the help. A module with an `app` has subcommands
#: of its own; in the others the function of the same name is the command.
MODULES: Final = {
    name: f"millstream.cli.{module}"
    for name, module in {
        "topic": "topic.topic",
        "group": "group.group",
        "txn": "txn.txn",
        "acl": "acl.acl",
        "quota": "quota.quota",
        "broker": "cluster.broker",
        "cluster": "cluster.cluster",
        "user": "user.user",
        "log": "log.log",
        "doctor": "doctor.doctor",
        "profile": "profile",
        "serve": "serve",
        "tls": "tls.tls",
        "produce": "produce",
        "consume": "consume",
        "outbox": "outbox",
        "dlq": "dlq.dlq",
        "worker": "worker.worker",
        "job": "job.job",
        "pipeline": "pipeline.pipeline",
        "docs": "docs",
    }.items()
}


_COMPLETION_HELP: Final = (
    "Completion in bash, zsh and fish, also of topics, groups and brokers: run"
    " `millstream --install-completion` once."
)


def build(names: Iterable[str] = MODULES) -> typer.Typer:
    """Build the command with the named subcommands."""
    app = typer.Typer(
        name="millstream",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=f"{EXIT_CODES_HELP}\n\n{_COMPLETION_HELP}",
        help="A message broker that speaks the Kafka protocol, and the tools to use it.",
    )
    for name in names:
        module = importlib.import_module(MODULES[name])
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name, epilog=EXIT_CODES_HELP)(getattr(module, name))
    app.callback()(root)
    app.command()(version)
    use_command_class(app)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"millstream {_version()}")
        raise typer.Exit


def root(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options before a subcommand."""


def version(as_json: JsonOption = False) -> None:
    """Print the versions of Millstream, Python and the client library."""
    import platform

    from millstream.client.connection import library_versions

    versions = {
        "millstream": _version(),
        "python": platform.python_version(),
        **library_versions(),
    }
    if as_json:
        print_json(versions)
    else:
        for name, number in versions.items():
            typer.echo(f"{name.replace('_', '-')} {number}")


def _version() -> str:
    import importlib.metadata

    return importlib.metadata.version("millstream")


def main() -> None:
    """Entry point of the `millstream` script."""
    words = completed_words(os.environ) or sys.argv
    build(subcommands_of(words[1:2]))()


def subcommands_of(first: Sequence[str]) -> Iterable[str]:
    """Return the subcommands that a command line with this first word needs."""
    if first and first[0] in ("--version", "version"):
        return ()
    return first if first and first[0] in MODULES else MODULES


def completed_words(environment: Mapping[str, str]) -> list[str]:
    """Return the command line that a shell completes; empty if this is no completion.

    Typer's scripts for shells set these variables."""
    if "_MILLSTREAM_COMPLETE" not in environment:
        return []
    line = environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS", "")
    return line.split()


if __name__ == "__main__":
    main()
