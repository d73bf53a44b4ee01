"""`millstream worker scale`: the number of workers that a group's lag asks for.

It only prints or serves the number. An autoscaler starts and stops the workers.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millstream.cli.support.connection import (
    TIMEOUT_S_DEFAULT,
    Connection,
    PropertiesOption,
    ServersOption,
    TimeoutOption,
)
from millstream.cli.support.failure import CommandError, ExitCode, guarded
from millstream.cli.support.quantity import Duration, Rate, duration_option, rate_option
from millstream.cli.support.terminal import JsonOption, counted, print_json
from millstream.model.bootstrap import SERVERS_DEFAULT

if TYPE_CHECKING:
    from millstream.cli.worker.scale_decision import (
        GroupObservation,
        ScaleDecision,
        ScalePolicy,
        ScaleState,
    )
    from millstream.client.admin import Admin
    from millstream.client.record import Partition

_logger = logging.getLogger(__name__)

#: The ends of names of topics in which messages wait for a time: they ask for no worker.
_WAITING: Final = (".scheduled", ".parked")


@guarded
def scale(
    group: Annotated[str, typer.Option("--group", "-g", help="The group of the workers.")],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            help="Count the lag of this topic, also before the group has committed offsets. By"
            " default all topics of the group count, except those for delayed messages."
            " Repeatable.",
        ),
    ] = None,
    catch_up: Annotated[
        Duration, duration_option("--catch-up", minimum="1s", help="Time to work the lag off.")
    ] = Duration.parse("1m"),
    cool_down: Annotated[
        Duration,
        duration_option(
            "--cool-down", help="How long fewer workers must suffice before fewer are printed."
        ),
    ] = Duration.parse("5m"),
    workers_min: Annotated[int, typer.Option("--min", min=0, help="Never fewer workers.")] = 1,
    workers_max: Annotated[
        int | None,
        typer.Option("--max", min=1, help="Never more; by default the number of partitions."),
    ] = None,
    rate: Annotated[
        Rate | None,
        rate_option("--rate", help="Messages that one worker processes; by default measured."),
    ] = None,
    state_file: Annotated[
        Path | None,
        typer.Option(
            "--state",
            metavar="FILE",
            help="Where measurements are kept between two calls; by default a file in the user's"
            " state directory.",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Keep running, and serve the number as JSON at / and as a metric at /metrics.",
        ),
    ] = None,
    interval: Annotated[
        Duration, duration_option("--interval", minimum="1s", help="With --listen: how often.")
    ] = Duration.parse("15s"),
    as_json: JsonOption = False,
    as_metric: Annotated[
        bool, typer.Option("--metric", help="Print Prometheus metrics, for a file collector.")
    ] = False,
    servers: ServersOption = SERVERS_DEFAULT,
    properties: PropertiesOption = None,
    timeout: TimeoutOption = TIMEOUT_S_DEFAULT,
) -> None:
    """Print the number of workers that the group's lag asks for.

    It is the arrival rate plus the lag over the catch-up time, divided by the rate of one worker.
    More workers are printed at once, fewer only after the cool-down. Rates are measured from one
    call to the next, so call this every 15 seconds or so, or use --listen.
    """
    from millstream.cli.worker.scale_decision import ScalePolicy

    if as_json and as_metric:
        raise CommandError(ExitCode.USAGE, "--json and --metric exclude each other: pass one.")
    policy = ScalePolicy(catch_up, cool_down, workers_min, workers_max, rate)
    scaler = Scaler(Connection(servers, properties, timeout), group, topics or [], policy)
    if listen is not None:
        _serve(scaler, listen, interval)
        return
    path = state_file or _state_path(group)
    state = _read(path)
    decision = scaler.decide(state)
    _write(path, state)
    if as_metric:
        from millstream.cli.worker.scale_metrics import scale_page

        typer.echo(scale_page(group, decision).body.decode(), nl=False)
    elif as_json:
        print_json(row_of(group, decision))
    else:
        typer.echo(_text(decision))


@dataclass(slots=True)
class Scaler:
    """Observes a group and decides."""

    connection: Connection
    group: str
    topics: list[str]
    policy: ScalePolicy

    def decide(self, state: ScaleState) -> ScaleDecision:
        """Observe the group now, and return the decision."""
        from millstream.cli.worker.scale_decision import decide

        with self.connection.open_admin() as admin, self.connection.failing(group=self.group):
            seen = self._observe(admin)
        return decide(self.policy, seen, state)

    def _observe(self, admin: Admin) -> GroupObservation:
        from millstream.cli.worker.scale_decision import GroupObservation

        members = _members(admin, self.group)
        committed = {} if members is None else admin.list_group_offsets(self.group)
        topics = self.topics or sorted({each.topic for each in committed if _counts(each.topic)})
        starts: dict[Partition, int] = {}
        ends: dict[Partition, int] = {}
        for topic in topics:
            starts |= admin.list_topic_offsets(topic, "earliest")
            ends |= admin.list_topic_offsets(topic)
        if not ends:
            raise CommandError(
                ExitCode.NOT_FOUND,
                f"group {self.group!r} has no committed offsets: its workers commit soon after they"
                " start. Pass --topic to count a topic before that.",
            )
        # Partitions without a committed offset count from their start.
        reached = {each: max(int(committed.get(each, 0)), starts[each]) for each in ends}
        return GroupObservation(
            at=time.time(),
            ends=sum(ends.values()),
            committed=sum(reached.values()),
            lag=sum(max(0, end - reached[each]) for each, end in ends.items()),
            members=members or 0,
            partitions=len(ends),
        )


def _members(admin: Admin, group: str) -> int | None:
    """Return the number of members, or None if the group does not exist."""
    from millstream.client.error import BrokerError

    try:
        return len(admin.describe_group(group).members)
    except BrokerError as error:
        if error.name != "GROUP_ID_NOT_FOUND":
            raise
        return None


def _counts(topic: str) -> bool:
    """Whether the lag of a topic asks for workers."""
    return not topic.endswith(_WAITING) and ".retry." not in topic


def row_of(group: str, decision: ScaleDecision) -> dict[str, Any]:
    """Return the decision as JSON's keys."""
    return {
        "group": group,
        "workers": decision.workers,
        "needed": decision.needed,
        "members": decision.members,
        "lag": decision.lag,
        "rate": decision.rate,
        "arrival_rate": decision.arrival_rate,
    }


def _text(decision: ScaleDecision) -> str:
    rate = "unknown" if decision.rate is None else f"{decision.rate:,.1f}/s"
    arrival = "unknown" if decision.arrival_rate is None else f"{decision.arrival_rate:,.1f}/s"
    return (
        f"{counted(decision.workers, 'worker')}  needed now {decision.needed}, members"
        f" {decision.members}, lag {counted(decision.lag, 'record')}, arriving {arrival}, one"
        f" worker {rate}"
    )


# State between two calls


def _state_path(group: str) -> Path:
    import hashlib

    import platformdirs

    # A group's name may have characters that no file name has.
    digest = hashlib.sha256(group.encode()).hexdigest()[:16]
    return Path(platformdirs.user_state_dir("millstream")) / f"scale-{digest}.json"


def _read(path: Path) -> ScaleState:
    import msgspec

    from millstream.cli.worker.scale_decision import ScaleState

    try:
        return msgspec.json.decode(path.read_bytes(), type=ScaleState)
    except FileNotFoundError:
        return ScaleState()
    except msgspec.MsgspecError as error:
        raise CommandError(
            ExitCode.USAGE, f"{path} is not a state of `worker scale` ({error}): delete it."
        ) from None


def _write(path: Path, state: ScaleState) -> None:
    import os

    import msgspec

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A reader never sees half of the file.
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(state))
        draft.replace(path)
    except OSError as error:
        raise CommandError(
            ExitCode.FAILED, f"cannot write {path}: {error.strerror}. Pass another --state."
        ) from None


# The server


def _serve(scaler: Scaler, listen: str, interval_s: float) -> None:
    """Decide every `interval_s` until SIGTERM or Ctrl-C, and serve the last decision."""
    from millstream.cli.worker.scale_decision import ScaleState
    from millstream.cli.worker.scale_metrics import ScalePages
    from millstream.cli.worker.status_server import StatusServer
    from millstream.env.termination import on_termination

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    pages, state, stopping = ScalePages(scaler.group), ScaleState(), threading.Event()
    with StatusServer(listen, pages.pages()) as server, on_termination(stopping.set):
        _logger.info("The number of workers: http://%s/", server.address)
        while not stopping.is_set():
            try:
                pages.decision, pages.problem = scaler.decide(state), None
            except CommandError as failure:
                _logger.warning("%s", failure)
                pages.problem = str(failure)
            stopping.wait(interval_s)
