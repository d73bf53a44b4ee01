"""A real broker inside this process, for tests.

    with LocalBroker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

It runs on a thread with an event loop of its own, on a free port of 127.0.0.1 that it keeps over
restarts, and over a folder that goes when it is closed, unless one was given. Everything here may
be called from any thread; nothing here needs an event loop. It is the broker that `millstream
serve` runs, with settings that suit tests (`SETTINGS`), and with faults on demand.
"""

from __future__ import annotations

import asyncio
import errno
import random
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.context import Services
from millstream.broker.environment import system_environment
from millstream.broker.process import loop_factory
from millstream.broker.server import Server
from millstream.broker.topic import DEFAULT
from millstream.model.error import BrokerError, ErrorCode
from millstream.process.port import HOST, PORTS
from millstream.testing.fault import Faults
from millstream.testing.member import expire_member
from millstream.wire.api import ApiKey

_T = TypeVar("_T")

#: Groups form at once and notice changes soon, and little is made that a test does not look at.
SETTINGS: Final = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "10",
    "group.consumer.min.session.timeout.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "http.listen": "",
    "offsets.topic.num.partitions": "1",
    "shutdown.drain.timeout.ms": "1000",
    "transaction.state.log.num.partitions": "1",
}
_PORT_TRIES: Final = 50
#: After which a broker that does not answer is taken for stuck.
_WAIT_S_MAX: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Running:
    """A broker at work on its thread."""

    loop: asyncio.AbstractEventLoop
    server: Server
    services: Services
    faults: Faults
    #: Set, on the loop, to have it stop.
    told: asyncio.Event


class LocalBroker:
    """`settings` are broker settings by their Kafka names; see the module's text."""

    def __init__(
        self, folder: Path | None = None, settings: Mapping[str, object] | None = None
    ) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="millstream-")
            folder = Path(self._temporary.name)
        self.folder = folder
        self._settings = {name: _text(value) for name, value in (settings or {}).items()}
        self._port: int | None = None
        self._running: _Running | None = None
        #: Resolved when the thread has ended, with what it ended of.
        self._ended: Future[None] = Future()

    @property
    def bootstrap_servers(self) -> str:
        """What clients call `bootstrap.servers`. The same after a restart."""
        if self._port is None:
            raise RuntimeError("the broker was not started yet, so it has no address")
        return f"{HOST}:{self._port}"

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Its life

    def start(self) -> None:
        """Return when clients are served. Raises ConfigError where a setting is wrong."""
        if self._running is not None:
            raise RuntimeError("the broker is running already")
        if self._port is not None:
            self._start(self._port)
            return
        for port in random.SystemRandom().sample(PORTS, _PORT_TRIES):
            try:
                self._start(port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                self._port = port
                return
        raise OSError(f"none of {_PORT_TRIES} ports tried on {HOST} is free")

    def _start(self, port: int) -> None:
        flags = SETTINGS | {
            "log.dir": str(self.folder),
            "listeners": f"PLAINTEXT://{HOST}:{port}",
            **self._settings,
        }
        config = BrokerConfig.load(flags=flags)
        started: Future[_Running] = Future()
        self._ended = Future()
        arguments = (config, started, self._ended)
        threading.Thread(target=_run, args=arguments, name="millstream", daemon=True).start()
        self._running = started.result(_WAIT_S_MAX)

    def stop(self) -> None:
        """Stop cleanly; the data stays, and `start` serves it again. Nothing if it is stopped."""
        running, self._running = self._running, None
        if running is not None:
            running.loop.call_soon_threadsafe(running.told.set)
            self._ended.result(_WAIT_S_MAX)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove the folder unless it was given."""
        try:
            self.stop()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()

    # Topics

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, object] | None = None
    ) -> None:
        """Return when the topic can be used. Raises BrokerError, for example if it exists."""
        texts = {key: _text(value) for key, value in (configs or {}).items()}

        async def create(services: Services) -> None:
            services.topics.validate_name(name)
            planned = await services.topics.plan(name, partitions, DEFAULT, texts)
            (result,) = await services.topics.create([planned])
            if isinstance(result, BrokerError):
                raise result

        self._await(create)

    def delete_topic(self, name: str) -> None:
        """Raises BrokerError if there is no such topic."""

        async def delete(services: Services) -> None:
            (result,) = await services.catalog.delete_topics([name])
            if isinstance(result, BrokerError):
                raise result

        self._await(delete)

    # Faults

    def drop_connections(self) -> None:
        """Cut off every client there is. They may connect again at once."""
        self._call(lambda running: running.server.drop_connections())

    def fail_produces(self, count: int, error: ErrorCode | int | str) -> None:
        """Refuse the next produce requests with an error of the protocol, by its Kafka name
        (`"NOT_ENOUGH_REPLICAS"`) or number. Nothing of them is appended.

        Producers send such requests again after an error that may pass."""
        code = _error_code(error)
        self._call(lambda running: running.faults.fail_produces(count, code))

    def drop_produce_answers(self, count: int = 1) -> None:
        """Append what the next produce requests bring, then close the connection in place of an
        answer. An idempotent producer sends again and nothing is doubled; another doubles."""
        self._call(lambda running: running.faults.drop_produce_answers(count))

    def delay_answers(
        self, seconds: float, api: str | None = None, count: int | None = None
    ) -> None:
        """Hold answers back: all, or those of one API (`"FETCH"`, `"PRODUCE"`, ...), and of these
        the next `count`. Requests are carried out in time."""
        key = None if api is None else _api_key(api)
        self._call(lambda running: running.faults.delay_answers(seconds, key, count))

    def expire_member(self, group_id: str, member_id: str | None = None) -> str:
        """End a group member's session as if it had been silent for too long, and have the group
        rebalance; without an id the only member there is. Returns its id.

        Raises LookupError if there is no such member."""
        return self._call(
            lambda running: expire_member(running.services.groups, group_id, member_id)
        )

    def clear_faults(self) -> None:
        """Behave again; answers that are held back leave now. Nothing if it is stopped."""
        if self._running is not None:
            self._call(lambda running: running.faults.clear())

    # Its thread

    def _call(self, function: Callable[[_Running], _T]) -> _T:
        running = self._require_running()

        async def call() -> _T:
            return function(running)

        return asyncio.run_coroutine_threadsafe(call(), running.loop).result(_WAIT_S_MAX)

    def _await(self, function: Callable[[Services], Coroutine[Any, Any, _T]]) -> _T:
        running = self._require_running()
        coroutine = function(running.services)
        return asyncio.run_coroutine_threadsafe(coroutine, running.loop).result(_WAIT_S_MAX)

    def _require_running(self) -> _Running:
        if self._running is None:
            raise RuntimeError("the broker is not running: start it first")
        return self._running


def _run(config: BrokerConfig, started: Future[_Running], ended: Future[None]) -> None:
    """The thread: all that goes wrong is for whoever waits for one of the two."""
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(config, started))
    except BaseException as error:  # noqa: BLE001  # passed on
        (ended if started.done() else started).set_exception(error)
    else:
        ended.set_result(None)


async def _serve(config: BrokerConfig, started: Future[_Running]) -> None:
    server = Server(config, system_environment(config))
    await server.start()
    assert server.services is not None
    faults = Faults()
    faults.install(server.services.apis)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    started.set_result(_Running(loop, server, server.services, faults, told))
    await told.wait()
    failure = server.failed.result() if server.failed.done() else None
    faults.clear()
    await server.stop()
    if failure is not None:
        raise failure


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _error_code(error: ErrorCode | int | str) -> ErrorCode:
    try:
        code = ErrorCode[error.upper()] if isinstance(error, str) else ErrorCode(error)
    except (KeyError, ValueError):
        raise ValueError(f"{error!r} is no error of the protocol: use Kafka's name") from None
    if code is ErrorCode.NONE:
        raise ValueError("NONE is no error")
    return code


def _api_key(name: str) -> ApiKey:
    try:
        return ApiKey[name.upper()]
    except KeyError:
        known = ", ".join(key.name for key in ApiKey)
        raise ValueError(f"{name!r} is no API of the protocol; it has: {known}") from None
