"""`millstream broker config`: describe, set and unset settings of running brokers.

A setting has up to four values. The first of these that is set is in force:

    broker    set at run time for one broker (`--broker ID`)
    cluster   set at run time for all brokers
    static    the broker's file, environment or command line at its start
    default   the default
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

import typer

from millstream.cli.support.cluster_connection import connected_cluster
from millstream.cli.support.completion import complete_brokers
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
    parse_pairs,
)
from millstream.cli.support.failure import EXIT_CODES_HELP, CommandError, ExitCode, guarded
from millstream.cli.support.option import DryRunOption, RegexOption, name_matcher
from millstream.cli.support.terminal import JsonOption, note, print_json, print_table
from millstream.model.bootstrap import SERVERS_DEFAULT
from millstream.model.definition import ConfigSource
from millstream.model.error import ErrorCode
from millstream.protocol.cluster_client import ClusterClient
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from millstream.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

app = typer.Typer(no_args_is_help=True, help="Describe, set and unset settings of running brokers.")

_BROKER: Final = 4
_SET, _DELETE = 0, 1
_SOURCES: Final = {
    ConfigSource.DYNAMIC_BROKER: "broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "cluster",
    ConfigSource.STATIC_BROKER: "static",
    ConfigSource.DEFAULT: "default",
}

_BrokerOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--broker",
        metavar="ID",
        min=0,
        help="Only this broker. By default the setting of all brokers.",
        autocompletion=complete_brokers,
    ),
]


@dataclass(frozen=True, slots=True)
class _BrokerConfigs:
    """The run-time settings of one broker, or of all if `broker` is None."""

    cluster: ClusterClient
    broker: int | None

    def describe(self) -> list[dict[str, Any]]:
        resource = DescribeConfigsRequest.Resource(
            resource_type=_BROKER, resource_name=self._name(), configuration_keys=None
        )
        response = self._connection().call(
            DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse
        )
        (result,) = response.results
        if result.error_code:
            raise _failure(result.error_code, result.error_message)
        return [
            {
                "setting": row.name,
                "value": row.value,
                "source": _SOURCES.get(ConfigSource(row.config_source), "unknown"),
                "read_only": row.read_only,
                "sensitive": row.is_sensitive,
            }
            for row in sorted(result.configs, key=lambda row: row.name)
        ]

    def alter(self, changes: Iterable[tuple[str, int, str | None]], *, is_dry: bool) -> None:
        """Apply all changes or none."""
        configs = [
            IncrementalAlterConfigsRequest.Resource.Config(
                name=name, config_operation=operation, value=value
            )
            for name, operation, value in changes
        ]
        resource = IncrementalAlterConfigsRequest.Resource(
            resource_type=_BROKER, resource_name=self._name(), configs=configs
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=is_dry)
        response = self._connection().call(request, IncrementalAlterConfigsResponse)
        (row,) = response.responses
        if row.error_code:
            raise _failure(row.error_code, row.error_message)

    def _name(self) -> str:
        return "" if self.broker is None else str(self.broker)

    def _connection(self) -> Any:
        """Return a connection to the broker itself: others do not know its settings."""
        if self.broker is None:
            return self.cluster.any_connection()
        if self.broker not in self.cluster.broker_ids:
            raise CommandError(
                ExitCode.NOT_FOUND,
                f"broker {self.broker} is not alive: `millstream broker list` shows all brokers.",
            )
        return self.cluster.broker_connection(self.broker)


def _failure(code: int, message: str | None) -> CommandError:
    reason = (message or ErrorCode(code).name).rstrip(".")
    return CommandError(ExitCode.FAILED, f"the broker rejected the request: {reason}.")


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def describe(
    pattern: Annotated[
        str, typer.Argument(help="Show matching settings; * and ? match any characters.")
    ] = "*",
    broker: _BrokerOption = None,
    all_configs: Annotated[
        bool, typer.Option("--all-configs", "-a", help="Also settings with their default value.")
    ] = False,
    regex: RegexOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Show the settings of a broker with the source of each value.

    Without --broker it shows what is set at run time for all brokers.
    """
    matches = name_matcher([pattern], is_regex=regex)
    with connected_cluster(servers, properties, timeout) as cluster:
        found = _BrokerConfigs(cluster, broker).describe()
    rows = [
        row
        for row in found
        if matches(row["setting"]) and (all_configs or row["source"] != "default")
    ]
    if as_json:
        print_json(rows)
    elif rows:
        headings = ["SETTING", "VALUE", "SOURCE", "CHANGES"]
        cells = [
            (
                row["setting"],
                "(secret)" if row["sensitive"] else row["value"] or "",
                row["source"],
                "at a restart" if row["read_only"] else "at run time",
            )
            for row in rows
        ]
        print_table(headings, cells)
    elif broker is None:
        note("Nothing is set at run time for all brokers; see --broker ID for one broker.")
    else:
        note("No settings match; --all-configs also shows defaults.")


@app.command("set", epilog=EXIT_CODES_HELP)
@guarded
def set_configs(
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...")],
    broker: _BrokerOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Set settings at run time, for all brokers or one. All of them are set, or none."""
    pairs = parse_pairs(settings, "the setting")
    with connected_cluster(servers, properties, timeout) as cluster:
        _check_secrets(cluster, broker, pairs)
        _BrokerConfigs(cluster, broker).alter(
            [(name, _SET, value) for name, value in pairs.items()], is_dry=dry_run
        )
    _report({name: f"set to {value}" for name, value in pairs.items()}, dry_run, as_json)


@app.command(epilog=EXIT_CODES_HELP)
@guarded
def unset(
    names: Annotated[list[str], typer.Argument(metavar="KEY...")],
    broker: _BrokerOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Remove values that were set at run time: the value of the next source is in force again."""
    with connected_cluster(servers, properties, timeout) as cluster:
        _BrokerConfigs(cluster, broker).alter(
            [(name, _DELETE, None) for name in dict.fromkeys(names)], is_dry=dry_run
        )
    _report(dict.fromkeys(names, "unset"), dry_run, as_json)


def _check_secrets(cluster: ClusterClient, broker: int | None, names: Iterable[str]) -> None:
    """Reject secrets: all users of this host see the arguments of a command."""
    node_id = min(cluster.broker_ids) if broker is None else broker
    found = _BrokerConfigs(cluster, node_id).describe()
    sensitive = {row["setting"] for row in found if row["sensitive"]}
    for name in names:
        # Settings of one listener: `listener.name.<listener>.<setting>`.
        plain = name.split(".", 3)[-1] if name.startswith("listener.name.") else name
        if name in sensitive or plain in sensitive:
            raise CommandError(
                ExitCode.USAGE,
                f"{name} is a secret, and the arguments of a command are visible to other users of"
                " this host: set it in the broker's file or environment.",
            )


def _report(results: dict[str, str], is_dry: bool, as_json: bool) -> None:
    if as_json:
        rows = [
            {"setting": name, "result": "valid" if is_dry else text}
            for name, text in results.items()
        ]
        print_json(rows)
        return
    for name, text in results.items():
        typer.echo(f"{name}: {'valid' if is_dry else text}")
    if is_dry:
        note("A dry run: nothing was changed.")
