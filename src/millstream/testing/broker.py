"""A real broker inside this process, for tests.

    with LocalBroker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

The broker runs on a thread with an event loop of its own, on a free port of 127.0.0.1 that it keeps
over restarts. Its folder is deleted by `close`, unless the caller gave one. All methods may be
called from any thread and need no event loop. It is the broker that `millstream serve` runs, with
settings that suit tests (`SETTINGS`), and with faults on demand.
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
from millstream.broker.lifecycle.environment import system_environment
from millstream.broker.process import loop_factory
from millstream.broker.server import Server
from millstream.broker.topic import DEFAULT
from millstream.model.error import BrokerError, ErrorCode, UsageError
from millstream.process.port import HOST, PORTS
from millstream.testing.error import LocalBrokerError
from millstream.testing.fault import Faults
from millstream.testing.member import expire_member
from millstream.wire.api import ApiKey

_T = TypeVar("_T")

#: Groups form at once, sessions expire soon, and internal topics are small.
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
#: After this time a broker that does not respond counts as stuck.
_WAIT_S_MAX: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Running:
    """A broker that runs on its thread."""

    loop: asyncio.AbstractEventLoop
    server: Server
    services: Services
    faults: Faults
    #: Set on the loop to stop the broker.
    stop_requested: asyncio.Event


class LocalBroker:
    """A broker on a thread of this process. `settings` are broker settings by their Kafka names."""

    #: The security protocol of its listener.
    protocol = "PLAINTEXT"

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
        #: Resolved when the thread has ended, with its error.
        self._ended: Future[None] = Future()

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients. A restart does not change it."""
        if self._port is None:
            raise LocalBrokerError("the broker has no address before its first start")
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

    # Start and stop

    def start(self) -> None:
        """Return when clients are served. Raises ConfigError if a setting is invalid."""
        if self._running is not None:
            raise LocalBrokerError("the broker is already running")
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
            "listeners": f"{self.protocol}://{HOST}:{port}",
            **self._settings,
        }
        config = BrokerConfig.load(flags=flags)
        started: Future[_Running] = Future()
        self._ended = Future()
        arguments = (config, started, self._ended)
        threading.Thread(target=_run, args=arguments, name="millstream", daemon=True).start()
        self._running = started.result(_WAIT_S_MAX)

    def stop(self) -> None:
        """Shut down cleanly, and keep the data for `start`. Does nothing if it is stopped."""
        running, self._running = self._running, None
        if running is not None:
            running.loop.call_soon_threadsafe(running.stop_requested.set)
            self._ended.result(_WAIT_S_MAX)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and delete the folder unless the caller gave it."""
        try:
            self.stop()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()

    # Topics

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, object] | None = None
    ) -> None:
        """Create a topic, and return when it can be used. Raises BrokerError, e.g. if it exists."""
        texts = {key: _text(value) for key, value in (configs or {}).items()}

        async def create(services: Services) -> None:
            services.topics.validate_name(name)
            planned = await services.topics.plan(name, partitions, DEFAULT, texts)
            (result,) = await services.topics.create([planned])
            if isinstance(result, BrokerError):
                raise result

        self._await(create)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises BrokerError if it does not exist."""

        async def delete(services: Services) -> None:
            (result,) = await services.catalog.delete_topics([name])
            if isinstance(result, BrokerError):
                raise result

        self._await(delete)

    # Faults

    def drop_connections(self) -> None:
        """Break the connections of all clients. They may reconnect at once."""
        self._call(lambda running: running.server.drop_connections())

    def fail_produces(self, count: int, error: ErrorCode | int | str) -> None:
        """Reject the next `count` Produce requests with an error of the protocol, given by Kafka's
        name (`"NOT_ENOUGH_REPLICAS"`) or number. Nothing of them is appended.

        Producers retry after a retriable error."""
        code = _error_code(error)
        self._call(lambda running: running.faults.fail_produces(count, code))

    def drop_produce_answers(self, count: int = 1) -> None:
        """Append the batches of the next `count` Produce requests, and close the connection instead
        of responding. An idempotent producer retries without duplicates; others duplicate."""
        self._call(lambda running: running.faults.drop_produce_answers(count))

    def delay_answers(
        self, seconds: float, api: str | None = None, count: int | None = None
    ) -> None:
        """Delay responses: of all APIs or of one (`"FETCH"`, `"PRODUCE"`, ...), all of them or the
        next `count`. Requests are handled without delay."""
        key = None if api is None else _api_key(api)
        self._call(lambda running: running.faults.delay_answers(seconds, key, count))

    def expire_member(self, group_id: str, member_id: str | None = None) -> str:
        """Expire the session of a group member, so that the group rebalances; return its id.

        Without a member id, expire the only member. Raises MemberNotFoundError if there is no such
        member."""
        return self._call(
            lambda running: expire_member(running.services.groups, group_id, member_id)
        )

    def clear_faults(self) -> None:
        """Remove all faults; delayed responses leave now. Does nothing if it is stopped."""
        if self._running is not None:
            self._call(lambda running: running.faults.clear())

    # Calls on the broker's thread

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
            raise LocalBrokerError("the broker is not running: start it first")
        return self._running


def _run(config: BrokerConfig, started: Future[_Running], ended: Future[None]) -> None:
    """Run the broker's thread; an error goes to `started`, or to `ended` after the start."""
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
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    started.set_result(_Running(loop, server, server.services, faults, stop_requested))
    await stop_requested.wait()
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
        raise UsageError(f"{error!r} is no error of the protocol; use Kafka's name") from None
    if code is ErrorCode.NONE:
        raise UsageError("NONE is no error")
    return code


def _api_key(name: str) -> ApiKey:
    try:
        return ApiKey[name.upper()]
    except KeyError:
        known = ", ".join(key.name for key in ApiKey)
        raise UsageError(f"{name!r} is no API of the protocol; it has: {known}") from None
