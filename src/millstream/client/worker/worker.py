"""The worker: calls a handler for the messages of topics, as a member of a group."""

from __future__ import annotations

import logging
import signal
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack, overload

from millstream.client.connection import servers_of
from millstream.client.consumer.subscription import topics_of
from millstream.client.error import MillstreamError, UsageError
from millstream.client.old_name import rejects_old_names
from millstream.client.tracing.worker_tracing import traced_handler
from millstream.client.worker.cron.expression import CronExpression
from millstream.client.worker.cron.ticks import CronJob, cron_topic
from millstream.client.worker.handler.routes import Handler, Routes
from millstream.client.worker.hint import Hint, hint_of
from millstream.client.worker.policy.policy import WorkerOptions, WorkerSettings
from millstream.client.worker.queue.outcome import Counts
from millstream.client.worker.session import SessionConfig, WorkerSession
from millstream.client.worker.topics import WorkerTopics
from millstream.env.termination import on_termination

_logger = logging.getLogger(__name__)

_RESTART_S: Final = 1.0

Function = TypeVar("Function", bound=Callable[..., Any])


class Worker:
    """Calls a handler for each message of its topics, many at once, until each is done or dead.

    >>> worker = Worker(topics=["parcels"], group_id="shipping", concurrency=8)
    >>> @worker.handler
    ... def ship(job):
    ...     if job.value == b"a bomb":
    ...         job.reject("not for us")
    ...     else:
    ...         job.send("shipped", job.value, key=job.key)
    >>> with Producer() as producer:
    ...     for parcel in ("a book", "a bomb", "a bike"):
    ...         _ = producer.send("parcels", parcel, key="alice")
    >>> with worker:
    ...     with Consumer(topics=["shipped"]) as consumer:
    ...         records = iter(consumer)
    ...         print([next(records).value for _ in range(2)])
    [b'a book', b'a bike']
    >>> worker.counts.dead
    1

    Returning is `job.ack()`, raising is `job.nack()`: the message is retried after a delay, and
    becomes a dead letter in `<topic>.dlq` after `attempts_max` attempts. Messages of one key run
    one after the other. With `order="none"` all run at once, and failed ones wait in
    `<topic>.retry.N`. The committed offset never passes an unfinished message: after a crash
    messages may come again, but none is lost. A message that kills its process each time becomes a
    dead letter too, and so does one whose output brokers reject. With `transactional=True` the
    records that handlers send are visible once. The keywords are those of `WorkerSettings`. A
    handler may be a coroutine function; plain handlers beside it run on threads.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        topics: Sequence[str] | None = None,
        group_id: str = "",
        handler: Handler | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        self._settings = WorkerSettings.of(options)
        if not group_id:
            raise UsageError("A worker needs a group: pass group_id='...'.")
        self._servers = bootstrap_servers
        self._group = group_id
        self._given_topics = None if topics is None else topics_of(topics)
        self._routes = Routes()
        if handler is not None:
            self.handler(handler)
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._ended.set()
        #: The id in offset metadata, for as long as this object lives.
        self._id = uuid.uuid4().hex[:12]
        self._session: WorkerSession | None = None
        self._began_at: float | None = None
        self._failure: BaseException | None = None
        self._topics_on_brokers = WorkerTopics(bootstrap_servers, self._settings)
        self.counts = Counts()

    # What the worker calls

    @overload
    def handler(self, first: Function, /) -> Function: ...

    @overload
    def handler(
        self, first: str | None = None, /, *topics: str, rate_limit: str | None = None
    ) -> Callable[[Function], Function]: ...

    def handler(self, first: Any = None, /, *topics: str, rate_limit: str | None = None) -> Any:
        """Decorator: set the function that is called for each message.

        `@worker.handler` sets the function for all topics, `@worker.handler("orders", "refunds")`
        the function for these topics. It is called with a `Job`, or with the value as the type that
        its parameter is annotated with (a pydantic model, msgspec Struct or dataclass). A message
        whose value does not validate becomes a dead letter at once. `rate_limit="10/s"` limits the
        attempts that start in this process.
        """
        if first is not None and not isinstance(first, str):
            self._routes.add(first, topics, rate_limit)
            return first
        names = [] if first is None else [first, *topics]

        def add(function: Function) -> Function:
            self._routes.add(function, names, rate_limit)
            return function

        return add

    def middleware(self, function: Function) -> Function:
        """Decorator: call `function(job, call_next)` around each handler call.

        It calls `call_next(job)`. If any handler is a coroutine function, middleware has to be
        `async def` and awaits `call_next(job)`. The first middleware is the outermost one. An
        exception of the handler passes through it.
        """
        self._routes.add_middleware(function)
        return function

    def cron(
        self, expression: str, *, timezone: str = "UTC", name: str | None = None
    ) -> Callable[[Function], Function]:
        """Decorator: run a function at the times of a cron expression.

        >>> worker = Worker(group_id="billing")
        >>> @worker.cron("*/5 * * * *")
        ... def close_invoices():
        ...     ...

        Each tick is a message in the topic `<group>.cron`. One worker of the group sends it, and
        one runs it, with retries and dead letters. A tick runs once, and again if its process dies
        before it is committed, or if the member is replaced while it runs. Of the ticks that were
        missed while no worker ran, only the last one runs. Ticks of one job do not overlap, unless
        `order="none"`. The function takes nothing, or a `Job` whose `record.timestamp` is the time
        of the tick. `name` identifies the job, by default the name of the function.
        """

        def add(function: Function) -> Function:
            found = name or str(getattr(function, "__name__", "job"))
            job = CronJob(found, CronExpression(expression, timezone), function)
            self._routes.add_cron(job)
            return function

        return add

    def number_process(self, number: int) -> None:
        """Make names that only one process may have differ: `name` and `group_instance_id`.

        `millstream worker run` calls this in each of its processes. Without it, the processes of a
        transactional worker with a name would fence each other.
        """
        self._settings = self._settings.numbered(number)

    def observe(self, callback: Callable[[str, float], object]) -> None:
        """Call `callback(topic, seconds)` after each handler call, for metrics."""
        self._routes.observer = callback

    def check(self) -> None:
        """Raise UsageError unless the worker has topics, and a handler for each of them."""
        if not self._routes.has_handler:
            raise UsageError(
                "The worker has no handler: pass handler=, or decorate a function with "
                "@worker.handler."
            )
        topics = self.topics
        if not topics and not self._routes.cron:
            raise UsageError(
                "The worker has no topics: pass topics=[...], or name them in "
                "@worker.handler('orders')."
            )
        self._routes.check(topics)
        self._routes.compiled(cron_topic(self._group))

    @property
    def topics(self) -> list[str]:
        """The topics that were given, or those that handlers name."""
        return self._routes.topics if self._given_topics is None else self._given_topics

    @property
    def group_id(self) -> str:
        """The group of the worker."""
        return self._group

    def run(self) -> None:
        """Work until `stop()`, SIGTERM or Ctrl-C. Then finish running jobs, commit and leave the
        group.

        In the main thread, SIGTERM calls `stop()` unless the program has its own handler. Ctrl-C,
        and any other exception of a signal handler, is raised once everything is committed. A
        second one is raised at once. `run` can be called again afterwards.
        """
        self._start()
        with on_termination(self.stop, signals=(signal.SIGTERM,), only_default=True):
            try:
                self._ended.wait()
            except BaseException:
                self.stop()
                self._ended.wait()
                self._stopping.clear()
                raise
        self._raise_failure()

    def stop(self) -> None:
        """Make `run` return; if it does not run, the next call returns at once.

        Does not wait, and may be called in a signal handler.
        """
        self._stopping.set()

    @property
    def held(self) -> int:
        """The number of messages that were read and are not finished and committed."""
        session = self._session
        return 0 if session is None else len(session.queue)

    @property
    def is_full(self) -> bool:
        """Whether reading of a partition is paused until messages that are held are done."""
        session = self._session
        return session is not None and session.is_full

    @property
    def in_progress(self) -> int:
        """The number of handlers that run."""
        session = self._session
        return 0 if session is None else session.queue.running

    @property
    def is_ready(self) -> bool:
        """Whether the worker is a member of its group."""
        session = self._session
        return session is not None and session.has_joined

    @rejects_old_names
    def hint(self, catch_up: float = 60.0) -> Hint:
        """Return how many such workers the group needs to catch up in `catch_up` seconds."""
        lag, partitions = self._topics_on_brokers.lag(self._group, self.topics)
        seconds = 0.0 if self._began_at is None else time.monotonic() - self._began_at
        rate = self.counts.done / seconds if seconds > 0 else 0.0
        return hint_of(lag, rate, catch_up, partitions)

    def __enter__(self) -> Self:
        """Work on a thread while the block runs."""
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        self._ended.wait()
        # The block may have called `stop()` itself.
        self._stopping.clear()
        if error is None:
            self._raise_failure()

    def _start(self) -> None:
        """Start the worker's thread.

        A signal interrupts the main thread between any two steps. It must not come between reading
        a message and recording its outcome.
        """
        if not self._ended.is_set():
            raise UsageError("The worker is running: stop it before you start it again.")
        self.check()
        self._ended.clear()
        self._failure = None
        handler = traced_handler(
            self._routes.compiled(cron_topic(self._group)),
            self._settings.tracing,
            self._group,
            servers_of(self._servers),
        )
        arguments = (handler,)
        threading.Thread(
            target=self._run, args=arguments, name="millstream-worker", daemon=True
        ).start()

    def _run(self, handler: Handler) -> None:
        self._began_at = time.monotonic()
        try:
            while not self._stopping.is_set():
                try:
                    self._run_session(handler)
                except UsageError:
                    raise
                except MillstreamError as error:
                    _logger.warning("The worker starts a new session: %s", error)
                    self._stopping.wait(_RESTART_S)
        except BaseException as error:  # noqa: BLE001 -- raised where the worker is waited for
            self._failure = error
        finally:
            self._session = None
            self._stopping.clear()
            self._ended.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run_session(self, handler: Handler) -> None:
        self._create_topics()
        config = SessionConfig(
            servers=self._servers,
            group=self._group,
            topics=self._read_topics(),
            settings=self._settings,
            routes=self._routes,
            handler=handler,
            counts=self.counts,
            owner=self._id,
            is_stopping=self._stopping.is_set,
            repair=self._create_topics,
        )
        self._session = WorkerSession(config)
        self._session.run()

    def _read_topics(self) -> list[str]:
        """Return the topics, with the group's topic of ticks if there are periodic jobs."""
        ticks = [cron_topic(self._group)] if self._routes.cron else []
        return [*self.topics, *ticks]

    def _create_topics(self) -> None:
        """Create the worker's own topics where they are missing."""
        ticks = cron_topic(self._group) if self._routes.cron else None
        self._topics_on_brokers.create(self._read_topics(), ticks)
