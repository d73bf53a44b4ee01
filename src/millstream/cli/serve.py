"""`millstream serve`: run a broker in the foreground. The only command that imports the broker.

It turns flags into settings and formats the log on standard error. Settings come from defaults, the
TOML file, MILLSTREAM_* variables, --set and flags of their own; a later source wins.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millstream.cli.support.connection import parse_pairs
from millstream.cli.support.failure import CommandError, ExitCode, guarded
from millstream.cli.support.option import LogLevel, LogLevelOption
from millstream.cli.support.profile import FILE_VARIABLE, PROFILE_VARIABLE
from millstream.cli.support.terminal import format_time, print_json, print_table
from millstream.model.bootstrap import SERVERS_VARIABLE
from millstream.model.security_protocol import SecurityProtocol

if TYPE_CHECKING:
    from millstream.broker.config.broker_config import BrokerConfig

#: MILLSTREAM_* variables that are not settings of a broker. MILLSTREAM_PURE is for setup.py.
_OWN_VARIABLES: Final = frozenset(
    {
        SERVERS_VARIABLE,
        "MILLSTREAM_CONFIG",
        "MILLSTREAM_OUTBOX_DATABASE",
        "MILLSTREAM_PURE",
        PROFILE_VARIABLE,
        FILE_VARIABLE,
    }
)
_NAMED: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*://")
_LISTENER_NAME: Final = "PLAINTEXT"
_PROTOCOLS: Final = "listener.security.protocol.map"
#: Printed instead of a secret.
_HIDDEN: Final = "(hidden)"
#: The source of default replication factors.
_FROM_BROKERS: Final = "number_of_brokers"


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
            help="Address for clients, by default 127.0.0.1:9092; :9092 means every address."
            " Repeatable.",
        ),
    ] = None,
    advertise: Annotated[
        list[str] | None,
        typer.Option(
            "--advertise",
            metavar="[NAME://]HOST:PORT",
            help="Address that clients connect to, if it differs from --listen; one for each"
            " --listen, in the same order.",
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Address of /metrics, /healthz and /readyz, by default 127.0.0.1:9644;"
            " empty to disable them.",
        ),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            metavar="etcd://HOST:PORT,.../PREFIX",
            help="The etcd that the brokers of a cluster share (metadata.store); etcds:// for TLS."
            " By default the broker is a cluster of one.",
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", envvar="MILLSTREAM_CONFIG", help="Settings in TOML."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="A setting by its name. Repeatable."),
    ] = None,
    log_level: LogLevelOption = LogLevel.info,
    check: Annotated[
        bool,
        typer.Option("--check", help="Print the effective settings and their sources, and exit."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Log in JSON, one object per line; also for --check.")
    ] = False,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    On either it shuts down cleanly: it completes requests in progress, flushes the logs and marks
    them clean.
    """
    flags = parse_pairs(settings or (), "--set")
    flags |= _address_flags(
        listen or [], advertise or [], has_protocols=_has_protocols(config_file, flags)
    )
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
    """Run the broker. Errors that an operator can fix become sentences; others keep their trace."""
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


def _has_protocols(file: Path | None, flags: Mapping[str, str]) -> bool:
    """Return whether a flag, the environment or the file says which protocols the listeners have.

    A listener whose protocol is SSL there must not become one without TLS."""
    from millstream.broker.config.broker_config import ConfigError, definitions
    from millstream.broker.config.config_source import from_file, variable_of
    from millstream.env.disk import SystemDisk

    if _PROTOCOLS in flags or variable_of(_PROTOCOLS) in os.environ:
        return True
    try:
        return file is not None and _PROTOCOLS in from_file(file, SystemDisk(), definitions)
    except ConfigError:
        # `_load` reports it.
        return False


def _address_flags(
    listen: Sequence[str], advertise: Sequence[str], *, has_protocols: bool = False
) -> dict[str, str]:
    """Return the settings for --listen and --advertise.

    Addresses without a name get PLAINTEXT, PLAINTEXT_2, ... in order, so that the first advertised
    address belongs to the first listener.
    """
    flags: dict[str, str] = {}
    if listen:
        listeners = _named(listen)
        flags["listeners"] = ",".join(listeners)
        names = {address.partition("://")[0].upper() for address in listeners}
        if names != {_LISTENER_NAME} and not has_protocols:
            protocols = sorted(f"{name}:{_protocol(name)}" for name in names)
            flags[_PROTOCOLS] = ",".join(protocols)
    if advertise:
        flags["advertised.listeners"] = ",".join(_named(advertise))
    return flags


def _protocol(listener_name: str) -> str:
    """Return the protocol that a listener's name says, else PLAINTEXT."""
    names = {protocol.value for protocol in SecurityProtocol}
    return listener_name if listener_name in names else SecurityProtocol.PLAINTEXT.value


def _named(addresses: Sequence[str]) -> list[str]:
    return [
        address
        if _NAMED.match(address)
        else f"{_LISTENER_NAME}{f'_{number}' if number > 1 else ''}://{address}"
        for number, address in enumerate(addresses, start=1)
    ]


def _load(file: Path | None, flags: Mapping[str, str]) -> BrokerConfig:
    from millstream.broker.config.broker_config import BrokerConfig, ConfigError, definitions
    from millstream.broker.config.config_source import check_flags
    from millstream.env.disk import SystemDisk

    environment = {key: value for key, value in os.environ.items() if key not in _OWN_VARIABLES}
    try:
        check_flags(flags, (each.name for each in definitions.values() if each.is_sensitive))
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
            _HIDDEN if definitions[name].is_sensitive and config.text(name) else config.text(name),
            # These values depend on the number of brokers in the running cluster.
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
    """Formats each record as a JSON object on one line."""

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
    """Formats records as `2026-01-31T12:00:00.000Z INFO millstream.broker.server: message`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return format_time(int(record.created * 1000))


def _start_logging(level: LogLevel, as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
    logging.basicConfig(level=level.value.upper(), handlers=[handler])
