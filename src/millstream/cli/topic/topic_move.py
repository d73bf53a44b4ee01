"""`millstream topic move`: move partitions to other brokers, or cancel moves.

The brokers do the work: they copy the records to the new replicas and then change the replicas. The
command only shows the progress, so an interrupt does not stop a move.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millstream.cli.support.completion import complete_topics
from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import CommandError, ExitCode, guarded, say_error
from millstream.cli.support.option import DryRunOption, YesOption
from millstream.cli.support.outcome import confirm
from millstream.cli.support.progress import progress
from millstream.cli.support.terminal import JsonOption, counted, note, print_json, print_table
from millstream.cli.topic.move_plan import Move, parse_brokers, plan_exact, plan_spread
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.client.admin import Admin
    from millstream.client.record import Partition

_POLL_S: Final = 0.5


@guarded
def move(
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", autocompletion=complete_topics)
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="BROKERS",
            help="Spread the partitions over these brokers: 1,2,3. With --partition these are the"
            " replicas, the preferred leader first.",
        ),
    ] = None,
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition. Repeatable."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, help="Default: as it is."),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the moves that are in progress.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Move topics to other brokers, and show the progress until the move is done.

    An interrupt ends the command but not the move; --cancel does.
    """
    brokers = _brokers(to, cancel, partitions, replication_factor)
    connection = Connection(servers, properties, timeout)
    with connection.failing():
        admin = connection.open_admin()
        current = _replicas(connection, admin, list(dict.fromkeys(topics)), partitions)
        if brokers is None:
            _cancel(connection, admin, current, dry_run, yes, as_json)
            return
        _check_brokers(admin, brokers)
        moves = _plan(current, brokers, partitions is not None, replication_factor)
        changed = [each for each in moves if each.is_changed]
        if dry_run or not changed:
            _show(moves, {}, "would move", as_json)
            return
        if not yes:
            _show(moves, {}, "would move", as_json=False)
            question = f"Move {counted(len(changed), 'partition')}?"
            confirm(question, "moving partitions", "nothing was moved.")
        _show(moves, _execute(connection, admin, changed), "moved", as_json)


def _brokers(
    to: str | None, cancel: bool, partitions: Sequence[int] | None, replication_factor: int | None
) -> tuple[int, ...] | None:
    """Return the brokers to move to; None with --cancel."""
    if cancel == (to is not None):
        raise CommandError(ExitCode.USAGE, "give either --to BROKERS or --cancel.")
    if replication_factor is not None and (cancel or partitions):
        raise CommandError(
            ExitCode.USAGE, "--replication-factor is for --to without --partition: remove it."
        )
    if to is None:
        return None
    try:
        return parse_brokers(to)
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"--to {error}.") from None


def _replicas(
    connection: Connection, admin: Admin, names: list[str], numbers: Sequence[int] | None
) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return the replicas of the chosen partitions. Raises CommandError if one is missing."""
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    for name, topic in admin.describe_topics(names, elr=False).items():
        if isinstance(topic, Exception):
            raise connection.failure(topic, topic=name)
        existing = {each.partition: each.replicas for each in topic.partitions}
        for number in numbers or existing:
            if number not in existing:
                count = counted(len(existing), "partition")
                raise CommandError(
                    ExitCode.NOT_FOUND, f"topic {name!r} has {count}, numbered from 0."
                )
            found[name, number] = existing[number]
    return found


def _check_brokers(admin: Admin, brokers: Iterable[int]) -> None:
    alive = [each.node_id for each in admin.describe_cluster().brokers]
    for broker in brokers:
        if broker not in alive:
            shown = ", ".join(map(str, alive))
            raise CommandError(
                ExitCode.NOT_FOUND, f"broker {broker} is not alive: the live brokers are {shown}."
            )


def _plan(
    current: Mapping[tuple[str, int], Sequence[int]],
    brokers: tuple[int, ...],
    is_exact: bool,
    replication_factor: int | None,
) -> list[Move]:
    if is_exact:
        return plan_exact(current, brokers)
    try:
        return plan_spread(current, brokers, replication_factor)
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"{error}.") from None


def _execute(
    connection: Connection, admin: Admin, moves: Sequence[Move]
) -> dict[tuple[str, int], str]:
    """Start the moves and wait until they are done. Return the failures by partition."""
    from millstream.client.record import Partition

    targets = {Partition(each.topic, each.partition): each.new for each in moves}
    outcomes = admin.alter_partition_reassignments(targets)
    failures = {
        (each.topic, each.partition): str(connection.failure(error))
        for each, error in outcomes.items()
        if error is not None
    }
    started = {each: new for each, new in targets.items() if each not in failures}
    try:
        _wait(admin, started)
    except KeyboardInterrupt:
        names = " ".join(sorted({each.topic for each in started}))
        note(f"The move continues. `millstream topic move {names} --cancel` cancels it.")
        raise
    for key in _unmoved(connection, admin, started):
        failures[key] = f"the move of {key[0]}-{key[1]} was cancelled."
    return failures


def _wait(admin: Admin, started: Mapping[Partition, Sequence[int]]) -> None:
    """Show the progress until no reassignment is left."""
    topics = sorted({each.topic for each in started})
    with progress("moving partitions", total=len(started)) as shown:
        while started:
            left = started.keys() & admin.list_partition_reassignments(topics).keys()
            shown.update(len(started) - len(left))
            if not left:
                return
            time.sleep(_POLL_S)


def _unmoved(
    connection: Connection, admin: Admin, started: Mapping[Partition, Sequence[int]]
) -> list[tuple[str, int]]:
    """Return the partitions whose replicas are not the planned ones."""
    names = sorted({each.topic for each in started})
    found = _replicas(connection, admin, names, None)
    return [
        (each.topic, each.partition)
        for each, new in started.items()
        if set(found[each]) != set(new)
    ]


def _cancel(
    connection: Connection,
    admin: Admin,
    current: Mapping[tuple[str, int], Sequence[int]],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    moving = admin.list_partition_reassignments(sorted({topic for topic, _ in current}))
    moves = [
        Move(*each, row.replicas, tuple(n for n in row.replicas if n not in row.adding))
        for each, row in sorted(moving.items())
        if each in current
    ]
    if not moves:
        if as_json:
            print_json([])
        note("No partitions are moving.")
        return
    if dry_run:
        _show(moves, {}, "would be cancelled", as_json)
        return
    if not yes:
        question = f"Cancel the moves of {counted(len(moves), 'partition')}?"
        confirm(question, "cancelling moves", "nothing was cancelled.")
    outcomes = admin.alter_partition_reassignments(
        {each: None for each in moving if each in current}
    )
    failures = {
        (each.topic, each.partition): str(connection.failure(error))
        for each, error in outcomes.items()
        if error is not None
    }
    _show(moves, failures, "cancelled", as_json)


def _show(
    moves: Sequence[Move], failures: Mapping[tuple[str, int], str], done: str, as_json: bool
) -> None:
    """Print each partition with its result. Exits with an error if one failed."""
    rows = [_row(each, failures, done) for each in moves]
    if as_json:
        print_json(rows)
    else:
        cells = [
            [
                row["topic"],
                row["partition"],
                ",".join(map(str, row["replicas"])),
                ",".join(map(str, row["new_replicas"])),
                row["result"],
            ]
            for row in rows
        ]
        headings = ["TOPIC", "PARTITION", "REPLICAS", "NEW REPLICAS", "RESULT"]
        print_table(headings, cells, right=("PARTITION",))
    for failure in failures.values():
        say_error(failure)
    if failures:
        raise typer.Exit(ExitCode.FAILED)


def _row(each: Move, failures: Mapping[tuple[str, int], str], done: str) -> dict[str, Any]:
    failure = failures.get((each.topic, each.partition))
    result = done if each.is_changed else "stays"
    row: dict[str, Any] = {
        "topic": each.topic,
        "partition": each.partition,
        "replicas": list(each.current),
        "new_replicas": list(each.new),
        "result": result if failure is None else "failed",
    }
    return row if failure is None else row | {"error": failure}
