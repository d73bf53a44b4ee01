"""The command `millstream`: its subcommands and its entry point.

Subcommand modules import the client library, rich and the broker inside the functions that need
them, so that `--help` and a wrong option answer at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from millstream.cli import consume, group, log, produce, serve, topic
from millstream.cli.failure import EXIT_CODES_HELP
from millstream.cli.terminal import JsonOption, print_json

app = typer.Typer(
    name="millstream",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES_HELP,
    help="A message broker that speaks the Kafka protocol, and the tools to use it.",
)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(log.app, name="log")
app.command("serve", epilog=EXIT_CODES_HELP)(serve.serve)
app.command("produce", epilog=EXIT_CODES_HELP)(produce.produce)
app.command("consume", epilog=EXIT_CODES_HELP)(consume.consume)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"millstream {_version()}")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Only options that stand before a subcommand."""


@app.command()
def version(as_json: JsonOption = False) -> None:
    """Print the versions of Millstream and of what it runs on."""
    import platform

    import confluent_kafka

    versions = {
        "millstream": _version(),
        "python": platform.python_version(),
        "confluent-kafka": confluent_kafka.__version__,
        "librdkafka": confluent_kafka.libversion()[0],
    }
    if as_json:
        print_json(versions)
    else:
        for name, number in versions.items():
            typer.echo(f"{name} {number}")


def _version() -> str:
    import importlib.metadata

    return importlib.metadata.version("millstream")


def main() -> None:
    """Entry point of the `millstream` script."""
    app()


if __name__ == "__main__":
    main()
