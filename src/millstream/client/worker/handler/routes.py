"""The handlers, middleware and periodic jobs of a worker, and the one function made of them.

`compiled` returns a single function of a job, once per session. A worker with one handler of plain
jobs and no middleware gets that handler itself back: what is not used costs nothing per message.

    handlers, periodic jobs and middleware      the worker runs them
    all plain functions                         on threads
    all coroutine functions                     as tasks of an event loop
    both                                        as tasks; the plain ones on threads
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from millstream.client.error import UsageError
from millstream.client.worker.cron.ticks import CronJob, TickHandler
from millstream.client.worker.handler.payload import bound
from millstream.client.worker.handler.thread_call import CallThreads
from millstream.client.worker.message.job import Job
from millstream.client.worker.policy.rate_limit import RateLimit

Handler: TypeAlias = Callable[[Job[Any]], Any]
Middleware: TypeAlias = Callable[[Job[Any], Handler], Any]
Observer: TypeAlias = Callable[[str, float], object]


@dataclass(frozen=True, slots=True)
class Route:
    """One handler. `function` takes what its annotations say."""

    function: Callable[..., Any]
    rate_limit: str | None = None


class Routes:
    """Collects what the decorators of a worker declare."""

    def __init__(self) -> None:
        self._default: Route | None = None
        self._by_topic: dict[str, Route] = {}
        self._middleware: list[Middleware] = []
        self._cron: dict[str, CronJob] = {}
        #: Called with the topic and the seconds of each handler call.
        self.observer: Observer | None = None

    def add(self, function: object, topics: Sequence[str], rate_limit: str | None) -> None:
        """Set the handler of these topics, or of all others if there are none."""
        check_callable(function, "handler", "a function of one job")
        _check_parameters(function, "handler", "handle(job)")
        if rate_limit is not None:
            RateLimit(rate_limit)
        route = Route(function, rate_limit)  # type: ignore[arg-type]
        for topic in topics:
            if topic in self._by_topic:
                raise UsageError(f"Topic {topic!r} has a handler already: a topic has one handler.")
            self._by_topic[topic] = route
        if not topics:
            self._default = route

    def add_middleware(self, function: object) -> None:
        """Call `function` around the handler, inside the middleware that was added before it."""
        check_callable(function, "middleware", "a function of a job and the next call")
        _check_parameters(function, "middleware", "around(job, call_next)")
        self._middleware.append(function)  # type: ignore[arg-type]

    def add_cron(self, job: CronJob) -> None:
        """Add a periodic job."""
        check_callable(job.function, "periodic job", "a function of one job or of nothing")
        if job.name in self._cron:
            raise UsageError(
                f"There is a periodic job {job.name!r} already: pass name= to tell them apart."
            )
        self._cron[job.name] = job

    @property
    def topics(self) -> list[str]:
        """The topics that handlers name."""
        return list(self._by_topic)

    @property
    def cron(self) -> Mapping[str, CronJob]:
        """The periodic jobs by name."""
        return self._cron

    @property
    def has_handler(self) -> bool:
        """Whether there is anything to call."""
        return bool(self._default or self._by_topic or self._cron)

    def rate_limits(self, topics: Iterable[str]) -> dict[str, RateLimit]:
        """Return new limits by topic. Topics of one handler share its limit."""
        by_route = {
            route: RateLimit(route.rate_limit)
            for route in (self._default, *self._by_topic.values())
            if route is not None and route.rate_limit is not None
        }
        routes = {topic: self._by_topic.get(topic, self._default) for topic in topics}
        return {topic: by_route[route] for topic, route in routes.items() if route in by_route}

    def check(self, topics: Sequence[str]) -> None:
        """Raise unless each of these topics has a handler, and each handler one of these topics."""
        for topic in topics:
            if topic not in self._by_topic and self._default is None:
                raise UsageError(
                    f"Topic {topic!r} has no handler: decorate a function with "
                    f"@worker.handler({topic!r}), or with @worker.handler for all topics."
                )
        for topic in self._by_topic:
            if topic not in topics:
                raise UsageError(
                    f"The handler of topic {topic!r} would never be called: add the topic to "
                    "topics=, or leave topics= out."
                )

    def compiled(self, cron_topic: str) -> Handler:
        """Return one function of a job. It is a coroutine function if any of the functions is."""
        is_async = self._is_async()
        threads = CallThreads()

        def adapted(function: Callable[..., Any], handler: Handler) -> Handler:
            """Return the handler that calls `function`, so that it fits the others."""
            is_plain = is_async and not is_coroutine(function)
            return threads.asynchronous(handler) if is_plain else handler

        def called(function: Callable[..., Any]) -> Handler:
            return adapted(function, bound(function, is_async=is_coroutine(function)))

        routes = {topic: called(route.function) for topic, route in self._by_topic.items()}
        if self._cron:
            routes[cron_topic] = TickHandler(self._cron, adapted).function(is_async=is_async)
        default = None if self._default is None else called(self._default.function)
        handler = default
        if routes:
            handler = _dispatch(routes, default, is_async=is_async)
        assert handler is not None
        for function in reversed(self._middleware):
            handler = _wrapped(function, handler, is_async=is_async)
        if self.observer is not None:
            handler = _timed(self.observer, handler, is_async=is_async)
        return handler

    def _is_async(self) -> bool:
        """Whether any function is a coroutine function. Raise for plain middleware then."""
        routes = [route for route in (self._default, *self._by_topic.values()) if route is not None]
        functions: list[object] = [route.function for route in routes]
        functions += [job.function for job in self._cron.values()]
        functions += self._middleware
        if not any(map(is_coroutine, functions)):
            return False
        for function in self._middleware:
            if not is_coroutine(function):
                raise UsageError(
                    f"The middleware {function!r} is a plain function, but other functions of the "
                    "worker are coroutine functions: make it `async def`, and await call_next(job)."
                )
        return True


def check_callable(function: object, what: str, wanted: str) -> None:
    """Raise if the function is not callable."""
    if not callable(function):
        raise UsageError(f"The {what} {function!r} is not callable: pass {wanted}.")


def _check_parameters(function: Any, what: str, example: str) -> None:
    """Raise if the function cannot be called with the arguments of the example."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some functions of C have none.
        return
    try:
        signature.bind(*example.split(","))
    except TypeError as error:
        raise UsageError(
            f"The {what} {function!r} cannot be called as {example}: {error}."
        ) from None


def is_coroutine(handler: object) -> bool:
    """Whether calling the handler returns a coroutine."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 -- a class may have an async one
    )


def _dispatch(routes: Mapping[str, Handler], default: Handler | None, *, is_async: bool) -> Handler:
    """Return a function that calls the handler of the job's topic."""
    if is_async:

        async def call_async(job: Job[Any]) -> Any:
            return await routes.get(job.topic, default)(job)  # type: ignore[misc]

        return call_async

    def call(job: Job[Any]) -> Any:
        return routes.get(job.topic, default)(job)  # type: ignore[misc]

    return call


def _wrapped(function: Middleware, handler: Handler, *, is_async: bool) -> Handler:
    """Return a function that calls the middleware around the handler."""
    if is_async:

        async def call_async(job: Job[Any]) -> Any:
            return await function(job, handler)

        return call_async

    def call(job: Job[Any]) -> Any:
        return function(job, handler)

    return call


def _timed(observer: Observer, handler: Handler, *, is_async: bool) -> Handler:
    """Return a function that calls the observer after the handler."""
    if is_async:

        async def call_async(job: Job[Any]) -> Any:
            begin = time.perf_counter()
            try:
                return await handler(job)
            finally:
                observer(job.topic, time.perf_counter() - begin)

        return call_async

    def call(job: Job[Any]) -> Any:
        begin = time.perf_counter()
        try:
            return handler(job)
        finally:
            observer(job.topic, time.perf_counter() - begin)

    return call
