"""The broker as a process of its own: what it asks of the system, its event loop and its signals.

SIGTERM and SIGINT stop the broker cleanly. A start that finds the broker's cluster out of reach is
made again for a while: whoever restarts brokers may meet with an etcd that is electing.

Limits and memory settings are of the whole process, so they are made here and not by a `Server`,
which may live beside others in one process.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import resource
import time
from collections.abc import Callable
from typing import Any

from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.environment import system_environment
from millstream.broker.server import NotJoinedError, Server
from millstream.env.termination import add_termination_handler

_log = logging.getLogger(__name__)

#: Descriptors besides logs and clients: the store, HTTP, flushes in progress.
SPARE_DESCRIPTORS = 1024
#: Of glibc's mallopt: from which size on memory comes from the system and goes back at once, and
#: how much may be unused before the rest goes back.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
KEPT_BUFFER_BYTES_MAX = 32 * 1024 * 1024
KEPT_BYTES_MAX = 64 * 1024 * 1024
#: Requests leave no cycles behind, so collecting often finds nothing and costs latency.
GC_THRESHOLDS = (50_000, 50, 100)
#: Between two attempts to join the cluster.
REST_S = 1.0


def run(config: BrokerConfig) -> int:
    """Run a broker until it is told to stop; returns the process's exit code."""
    _raise_descriptor_limit(config)
    _keep_freed_memory()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(config))


def _raise_descriptor_limit(config: BrokerConfig) -> None:
    """Let the process open as many files and sockets as the system grants, and say if that is
    fewer than the settings allow for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = config.log.log_open_files_max + config.network.max_connections + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        _log.warning(
            "the system grants %d open files; log.open.files.max and max.connections allow for %d: "
            "raise the limit (ulimit -n, LimitNOFILE) or lower them",
            hard,
            wanted,
        )


def _keep_freed_memory() -> None:
    """Have the C library keep what Python frees, up to a bound, instead of giving it back.

    Every Fetch needs a buffer of up to a few MiB for a moment. To ask the system for fresh, zeroed
    pages each time costs a quarter of the throughput of a reader. Only glibc can be told."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(M_MMAP_THRESHOLD, KEPT_BUFFER_BYTES_MAX)
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES_MAX)


def _settle_memory() -> None:
    """What was built by now lives as long as the process: keep the collector away from it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the fastest event loop there is; None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        _log.info("uvloop is not installed; using asyncio's own loop")
        return None
    return uvloop.new_event_loop


async def _serve(config: BrokerConfig) -> int:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    add_termination_handler(loop, told.set)
    server = await _start(config, told)
    if server is None:
        _log.info("stopped before it was part of the cluster")
        return 0
    _settle_memory()
    waiting = asyncio.ensure_future(told.wait())
    waits: set[asyncio.Future[Any]] = {waiting, server.failed}
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    has_failed = server.failed.done()
    if has_failed:
        _log.error("the broker can't go on and stops: %s", server.failed.result())
    else:
        _log.info("stopping")
    await server.stop()
    _log.info("stopped")
    return 1 if has_failed else 0


async def _start(config: BrokerConfig, told: asyncio.Event) -> Server | None:
    """A broker that serves clients; None if it was told to stop before it could join its cluster.
    Raises as `Server.start`."""
    #: From the first failure on: to recover the logs before it may have taken long.
    deadline: float | None = None
    while True:
        server = Server(config, system_environment(config))
        server.before_joining = _settle_memory
        try:
            await server.start()
        except NotJoinedError as error:
            now = time.monotonic()
            if deadline is None:
                deadline = now + config.cluster.initial_broker_registration_timeout_ms / 1000
            if told.is_set():
                return None
            if now >= deadline:
                raise
            _log.warning(
                "cannot join the cluster yet, trying for %.0f s more: %s", deadline - now, error
            )
        else:
            return server
        try:
            async with asyncio.timeout(REST_S):
                await told.wait()
        except TimeoutError:
            continue
        return None
