"""`millstream doctor`: check this host and a cluster, and say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from millstream.cli.doctor.cluster_check import Target, cluster_findings
from millstream.cli.doctor.finding import CheckScope, CheckState, Finding
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import ExitCode, guarded
from millstream.cli.support.progress import progress
from millstream.cli.support.terminal import JsonOption, print_json
from millstream.model.bootstrap import PORT_DEFAULT, SERVERS_DEFAULT

_DATA_DEFAULT: Final = Path("millstream-data")
_COLORS: Final = {
    CheckState.SKIPPED: "bright_black",
    CheckState.HEALTHY: "green",
    CheckState.WARNING: "yellow",
    CheckState.UNHEALTHY: "red",
}


@guarded
def doctor(
    only: Annotated[
        CheckScope | None, typer.Option("--only", help="Check only this host, or only the cluster.")
    ] = None,
    data: Annotated[
        Path,
        typer.Option("--data", "-d", metavar="DIR", help="The data directory of the broker here."),
    ] = _DATA_DEFAULT,
    port: Annotated[
        int, typer.Option("--port", min=1, max=65535, help="The broker's port for clients.")
    ] = PORT_DEFAULT,
    http_port: Annotated[
        int,
        typer.Option("--http-port", min=1, max=65535, help="The broker's port for metrics."),
    ] = 9644,
    lag_max: Annotated[
        int,
        typer.Option(
            "--max-lag", min=0, metavar="RECORDS", help="A group that is further behind is lagging."
        ),
    ] = 100_000,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Check this host and a cluster, and say what to do about each finding.

    It changes nothing. The exit code is 1 if a check is unhealthy; warnings do not count.
    """
    target = Target(servers, properties, timeout, lag_max)
    found: list[Finding] = []
    with progress("checks done", count=lambda: len(found)):
        found.extend(_findings(only, data, (port, http_port), target))
    is_healthy = not any(each.state is CheckState.UNHEALTHY for each in found)
    if as_json:
        print_json({"healthy": is_healthy, "checks": [each.as_dict() for each in found]})
    else:
        for each in found:
            _print(each)
        typer.echo()
        _print_verdict(found, is_healthy)
    if not is_healthy:
        raise typer.Exit(ExitCode.FAILED)


def _findings(
    only: CheckScope | None, data: Path, ports: tuple[int, int], target: Target
) -> Iterator[Finding]:
    from millstream.cli.doctor.host_check import host_findings
    from millstream.cli.doctor.software_check import software_findings

    if only is not CheckScope.CLUSTER:
        yield from host_findings(data, ports)
        yield from software_findings()
    if only is not CheckScope.HOST:
        yield from cluster_findings(target)


def _print(finding: Finding) -> None:
    typer.secho(f"{finding.state.value:<10}", fg=_COLORS[finding.state], nl=False)
    typer.echo(f"{finding.scope.value:<8} {finding.check:<18} {finding.found}")
    if finding.advice is not None:
        typer.echo(f"{'':<38}{finding.advice}")


def _print_verdict(found: list[Finding], is_healthy: bool) -> None:
    word, color = ("healthy", "green") if is_healthy else ("unhealthy", "red")
    typer.secho(word, fg=color, bold=True, nl=False)
    warnings = sum(each.state is CheckState.WARNING for each in found)
    typer.echo(f", {warnings} {'warning' if warnings == 1 else 'warnings'}" if warnings else "")
