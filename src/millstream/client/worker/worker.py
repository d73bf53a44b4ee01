"""The worker: calls a handler for the messages of topics, as a member of a group."""

from __future__ import annotations

import logging
import signal
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Never, Self, TypeVar, Unpack

from millstream.client.admin import Admin, ConfigResource
from millstream.client.consumer.subscription import topics_of
from millstream.client.error import MillstreamError, UsageError
from millstream.client.old_name import reject_unknown
from millstream.client.record import Partition
from millstream.client.schedule import PARKED_S, parked_topic, scheduled_topic
from millstream.client.worker.header import HEADERS_BYTES_MAX
from millstream.client.worker.hint import Hint, hint_of, lag_of
from millstream.client.worker.outcome import Counts
from millstream.client.worker.policy import WorkerOptions, WorkerSettings
from millstream.client.worker.runner import Handler, check_handler
from millstream.client.worker.session import SessionConfig, WorkerSession
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
    handler may be a coroutine function.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        topics: Sequence[str],
        group_id: str = "",
        handler: Handler | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        self._settings = WorkerSettings.of(options)
        if not group_id:
            raise UsageError("A worker needs a group: pass group_id='...'.")
        self._servers = bootstrap_servers
        self._group = group_id
        self._topics = topics_of(topics)
        self._handler: Handler | None = None
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
        self.counts = Counts()

    def handler(self, function: Function) -> Function:
        """Decorator: set the function that is called with each `Job`."""
        check_handler(function)
        self._handler = function
        return function

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

    def hint(self, catch_up: float = 60.0, **unknown: Never) -> Hint:
        """Return how many such workers the group needs to catch up in `catch_up` seconds."""
        if unknown:
            reject_unknown(unknown)
        with Admin(self._servers, **self._settings.admin_options) as admin:
            ends: dict[Partition, int] = {}
            for topic in self._topics:
                ends |= admin.list_topic_offsets(topic)
            lag = lag_of(ends, admin.list_group_offsets(self._group))
        seconds = 0.0 if self._began_at is None else time.monotonic() - self._began_at
        rate = self.counts.done / seconds if seconds > 0 else 0.0
        return hint_of(lag, rate, catch_up, len(ends))

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
        if self._handler is None:
            raise UsageError("The worker has no handler: pass handler=, or decorate a function.")
        if not self._ended.is_set():
            raise UsageError("The worker is running: stop it before you start it again.")
        self._ended.clear()
        self._failure = None
        arguments = (self._handler,)
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
        if self._settings.create_topics:
            self._create_topics()
        config = SessionConfig(
            servers=self._servers,
            group=self._group,
            topics=self._topics,
            settings=self._settings,
            handler=handler,
            counts=self.counts,
            owner=self._id,
            is_stopping=self._stopping.is_set,
            repair=self._repair,
        )
        self._session = WorkerSession(config)
        self._session.run()

    def _repair(self) -> None:
        """Create those of the worker's topics again that were deleted."""
        if self._settings.create_topics:
            self._create_topics()

    def _create_topics(self) -> None:
        """Create the worker's own topics where they are missing."""
        with Admin(self._servers, **self._settings.admin_options) as admin:
            existing = set(admin.list_topics())
            for name, topic in self._settings.created_topics(self._topics).items():
                config = self._settings.topic_config(name)
                if name not in existing:
                    self._create_topic(admin, name, topic, config)
                elif name == scheduled_topic(topic) and not config.items() <= (
                    _topic_config(admin, name).items()
                ):
                    # A producer created the topic by sending to it.
                    admin.alter_config(ConfigResource.topic(name), config)

    def _create_topic(self, admin: Admin, name: str, topic: str, config: dict[str, str]) -> None:
        """Create `name` for `topic`, with as many partitions. A parked topic has its own number."""
        is_parked = name == parked_topic(topic)
        partitions = len(PARKED_S) if is_parked else len(admin.describe_topic(topic).partitions)
        # Leave room for the headers that the worker adds to the largest message.
        size = int(_topic_config(admin, topic)["max.message.bytes"] or 0)
        size += HEADERS_BYTES_MAX
        config |= {"max.message.bytes": str(size)}
        admin.create_topic(name, partitions=partitions, config=config, if_missing=True)


def _topic_config(admin: Admin, topic: str) -> dict[str, str | None]:
    entries = admin.describe_config(ConfigResource.topic(topic))
    return {name: entry.value for name, entry in entries.items()}
