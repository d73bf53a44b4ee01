"""`millstream serve`: run a broker in the foreground. The only command that imports the broker.

Owns the way from flags to settings and the log's look on standard error. Settings come, the later
winning, from defaults, the TOML file, MILLSTREAM_* variables, --set, and the flags of their own.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millstream.cli.support.connection import parse_pairs
from millstream.cli.support.failure import CommandError, ExitCode, guarded
from millstream.cli.support.terminal import format_time, print_json, print_table

if TYPE_CHECKING:
    from millstream.broker.config.broker_config import BrokerConfig

#: Variables with our prefix that are the command line's own and no settings of a broker.
_OWN_VARIABLES: Final = frozenset({"MILLSTREAM_BOOTSTRAP_SERVERS", "MILLSTREAM_CONFIG"})
_NAMED: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*://")
_LISTENER_NAME: Final = "PLAINTEXT"
#: Where defaults for replicas come from.
_FROM_BROKERS: Final = "number_of_brokers"


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


@guarded
def serve(
    data: Annotated[
        Path | None,
        typer.Option("--data", "-d", metavar="DIR", help="Directory of all data (log.dir)."),
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            "--listen",
            "-l",
            metavar="[NAME://]HOST:PORT",
            help="Address for clients, by default 127.0.0.1:9092; :9092 is every address."
            " Repeatable.",
        ),
    ] = None,
    advertise: Annotated[
        list[str] | None,
        typer.Option(
            "--advertise",
            metavar="[NAME://]HOST:PORT",
            help="Address that clients are told, where it is not the one listened on; one for"
            " each --listen, in the same order.",
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Address of /metrics, /healthz and /readyz, by default 127.0.0.1:9644;"
            " empty for none.",
        ),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            metavar="etcd://HOST:PORT,.../PREFIX",
            help="etcd that the brokers of a cluster share (metadata.store); etcds:// for TLS."
            " By default the broker is a cluster of its own.",
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", envvar="MILLSTREAM_CONFIG", help="Settings, in TOML."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="A setting by its name. Repeatable."),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option("--log-level")] = LogLevel.info,
    check: Annotated[
        bool, typer.Option("--check", help="Print the settings in force and where they are from.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Log as JSON, one object a line; --check too.")
    ] = False,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    It stops cleanly on either: requests at work are finished, logs flushed and marked clean.
    """
    flags = parse_pairs(settings or (), "--set")
    flags |= _address_flags(listen or [], advertise or [], flags)
    if data is not None:
        flags["log.dir"] = str(data)
    if http is not None:
        flags["http.listen"] = http
    if metadata is not None:
        flags["metadata.store"] = metadata
    config = _load(config_file, flags)
    if check:
        _print_settings(config, as_json)
        return
    _start_logging(log_level, as_json)
    _run(config)


def _run(config: BrokerConfig) -> None:
    """Run until told to stop. What an operator can mend is a sentence, everything else a trace."""
    from millstream.broker.config.broker_config import ConfigError
    from millstream.broker.process import run
    from millstream.log.directory.data_directory import WrongDirectoryError
    from millstream.log.directory.lock import DirectoryInUseError

    try:
        code = run(config)
    except ConfigError as error:
        raise CommandError(ExitCode.USAGE, str(error)) from None
    except (DirectoryInUseError, WrongDirectoryError) as error:
        raise CommandError(ExitCode.FAILED, f"cannot start: {error}") from None
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        reason = f"{error.strerror or error}{where}"
        raise CommandError(ExitCode.FAILED, f"cannot start: {reason}") from None
    if code:
        raise typer.Exit(code)


def _address_flags(
    listen: Sequence[str], advertise: Sequence[str], given: Mapping[str, str]
) -> dict[str, str]:
    """The settings that --listen and --advertise stand for.

    Addresses without a name are PLAINTEXT, PLAINTEXT_2, ... by their place, so that the first
    advertised one belongs to the first listened on.
    """
    flags: dict[str, str] = {}
    if listen:
        listeners = _named(listen)
        flags["listeners"] = ",".join(listeners)
        names = {address.partition("://")[0].upper() for address in listeners}
        if names != {_LISTENER_NAME} and "listener.security.protocol.map" not in given:
            protocols = sorted(f"{name}:PLAINTEXT" for name in names)
            flags["listener.security.protocol.map"] = ",".join(protocols)
    if advertise:
        flags["advertised.listeners"] = ",".join(_named(advertise))
    return flags


def _named(addresses: Sequence[str]) -> list[str]:
    return [
        address
        if _NAMED.match(address)
        else f"{_LISTENER_NAME}{f'_{number}' if number > 1 else ''}://{address}"
        for number, address in enumerate(addresses, start=1)
    ]


def _load(file: Path | None, flags: Mapping[str, str]) -> BrokerConfig:
    from millstream.broker.config.broker_config import BrokerConfig, ConfigError
    from millstream.env.disk import SystemDisk

    environment = {key: value for key, value in os.environ.items() if key not in _OWN_VARIABLES}
    try:
        return BrokerConfig.load(
            file=file,
            disk=SystemDisk(),
            environment=environment,
            flags=flags,
            hostname=socket.gethostname(),
        )
    except ConfigError as error:
        raise CommandError(ExitCode.USAGE, str(error)) from None


def _print_settings(config: BrokerConfig, as_json: bool) -> None:
    from millstream.broker.config import replication_default
    from millstream.broker.config.broker_config import definitions

    rows = [
        (
            name,
            config.text(name),
            # Only the running cluster can tell these values.
            _FROM_BROKERS
            if replication_default.is_derived(config, name)
            else config.source(name).name.lower(),
        )
        for name in sorted(definitions)
    ]
    if as_json:
        print_json({name: {"value": text, "source": source} for name, text, source in rows})
    else:
        print_table(
            ["SETTING", "VALUE", "FROM"],
            [(name, "" if text is None else text, source) for name, text, source in rows],
        )


class _JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        row = {
            "time": format_time(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)
        return json.dumps(row, ensure_ascii=False)


class _TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO millstream.broker.server: message`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return format_time(int(record.created * 1000))


def _start_logging(level: LogLevel, as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
    logging.basicConfig(level=level.value.upper(), handlers=[handler])
