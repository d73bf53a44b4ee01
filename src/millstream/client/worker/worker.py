"""The worker: a handler for the messages of topics, run as a member of a group."""

from __future__ import annotations

import logging
import signal
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from millstream.client.admin import Admin
from millstream.client.consumer.consumer import topics_of
from millstream.client.error import ClientError, UsageError
from millstream.client.record import Partition
from millstream.client.schedule import PARKED_S, parked_topic, scheduled_topic
from millstream.client.worker.header import HEADERS_BYTES_MAX
from millstream.client.worker.hint import Hint, hint_of, lag_of
from millstream.client.worker.job_queue import Counts
from millstream.client.worker.policy import WorkerOptions, WorkerSettings
from millstream.client.worker.runner import Handler, check_handler
from millstream.client.worker.session import Session
from millstream.env.termination import on_termination

LOGGER: Final = logging.getLogger("millstream.client.worker")
_REST_S: Final = 1.0

Function = TypeVar("Function", bound=Callable[..., Any])


class Worker:
    """Calls a handler for each message of its topics, many at once, until each is done or dead.

    >>> worker = Worker(topics=["parcels"], group="shipping", concurrency=8)
    >>> @worker.handler
    ... def ship(job):
    ...     if job.value == b"a bomb":
    ...         job.reject("not for us")
    ...     else:
    ...         job.send("shipped", job.key, job.value)
    >>> with Producer() as producer:
    ...     for parcel in ("a book", "a bomb", "a bike"):
    ...         _ = producer.send("parcels", "alice", parcel)
    >>> with worker:
    ...     with Consumer(topics=["shipped"]) as consumer:
    ...         records = iter(consumer)
    ...         print([next(records).value for _ in range(2)])
    [b'a book', b'a bike']
    >>> worker.counts.dead
    1

    Returning is `job.ack()`, raising `job.nack()`: the message is tried again after a while, and
    after `attempts_max` attempts it is a dead letter in `<topic>.dlq`. Messages of one key are
    processed one after the other; with `order="none"` all at once, and those that failed wait in
    `<topic>.retry.N`. What is committed never goes past an unfinished message: after a crash
    messages may come again, but none is lost. A message that kills its process each time is a dead
    letter too, and so is one whose output the brokers reject. With `transactional=True` what
    handlers send comes once. The keywords are those of `WorkerSettings`. A handler may be a
    coroutine function.
    """

    def __init__(
        self,
        servers: str | None = None,
        *,
        topics: Sequence[str],
        group: str,
        handler: Handler | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        self._servers = servers
        self._group = group
        self._topics = topics_of(topics)
        self._settings = WorkerSettings.of(options)
        self._handler: Handler | None = None
        if handler is not None:
            self.handler(handler)
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._ended.set()
        #: In notes beside committed offsets, for as long as this object lives.
        self._id = uuid.uuid4().hex[:12]
        self._session: Session | None = None
        self._began_at: float | None = None
        self._failure: BaseException | None = None
        self.counts = Counts()

    def handler(self, function: Function) -> Function:
        """Decorator: the function that is called with each `Job`."""
        check_handler(function)
        self._handler = function
        return function

    def run(self) -> None:
        """Work until `stop()`, SIGTERM or Ctrl-C; then finish what runs, commit and leave.

        In the main thread, SIGTERM calls `stop()` where the program has no handler for it. Ctrl-C,
        and whatever else a signal handler raises, is raised once everything is committed; a second
        one is raised at once. Afterwards `run` can be called again.
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
        """Have `run` end; without one, have the next one end at once. Does not wait for it; may be
        called in a signal handler."""
        self._stopping.set()

    @property
    def held(self) -> int:
        """Messages that were read and are not finished and committed."""
        session = self._session
        return 0 if session is None else len(session.desk)

    @property
    def is_full(self) -> bool:
        """Whether reading rests, in a partition at least, until messages that are held are done."""
        session = self._session
        return session is not None and session.is_full

    def hint(self, catch_up_s: float = 60.0) -> Hint:
        """How many workers like this one would have the group caught up in that time."""
        admin = Admin(self._servers, config=self._settings.consumer.get("config"))
        with admin:
            ends: dict[Partition, int] = {}
            for topic in self._topics:
                ends |= admin.offsets(topic)
            lag = lag_of(ends, admin.group_offsets(self._group))
        seconds = 0.0 if self._began_at is None else time.monotonic() - self._began_at
        rate = self.counts.done / seconds if seconds > 0 else 0.0
        return hint_of(lag, rate, catch_up_s, len(ends))

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
        # The block may have stopped the worker itself.
        self._stopping.clear()
        if error is None:
            self._raise_failure()

    def _start(self) -> None:
        """Begin to work, on a thread: signals interrupt the main thread between any two steps, and
        must not come between reading a message and noting what became of it."""
        if self._handler is None:
            raise UsageError("The worker has no handler: give handler=, or decorate one.")
        if not self._ended.is_set():
            raise UsageError("The worker is running: stop it before it is started again.")
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
                    self._work(handler)
                except UsageError:
                    raise
                except ClientError as error:
                    LOGGER.warning("The worker begins anew: %s", error)
                    self._stopping.wait(_REST_S)
        except BaseException as error:  # noqa: BLE001 -- raised where the worker is waited for
            self._failure = error
        finally:
            self._session = None
            self._stopping.clear()
            self._ended.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self, handler: Handler) -> None:
        if self._settings.create_topics:
            self._make_topics()
        self._session = Session(
            self._servers,
            self._group,
            self._topics,
            self._settings,
            handler,
            self.counts,
            self._id,
            self._stopping.is_set,
            self._repair,
        )
        self._session.run()

    def _repair(self) -> None:
        """Create the worker's topics anew that somebody has deleted."""
        if self._settings.create_topics:
            self._make_topics()

    def _make_topics(self) -> None:
        """Those beside each topic, with as many partitions; a parked one has its own number."""
        with Admin(self._servers, config=self._settings.consumer.get("config")) as admin:
            there = set(admin.topics())
            for made, topic in self._settings.topics_made(self._topics).items():
                config = self._settings.topic_config(made)
                if made not in there:
                    partitions = admin.topic(topic).partitions
                    if made == parked_topic(topic):
                        partitions = len(PARKED_S)
                    # The largest message of the topic fits with the headers that it gets.
                    size = int(admin.topic_config(topic)["max.message.bytes"]) + HEADERS_BYTES_MAX
                    config |= {"max.message.bytes": str(size)}
                    admin.create_topic(made, partitions=partitions, config=config, if_missing=True)
                elif made == scheduled_topic(topic) and not config.items() <= (
                    admin.topic_config(made).items()
                ):
                    # A producer was here first, and it was made without being asked for.
                    admin.alter_topic(made, config)
