"""The broker as a process of its own: resource limits, memory, event loop and signals.

SIGTERM and SIGINT shut the broker down cleanly. systemd is notified of the start and the shutdown
(`lifecycle/systemd.py`). If the cluster cannot be reached at the start, the start is retried for a
while: brokers may be restarted while etcd elects a leader.

Limits and memory settings belong to the whole process. So they are here and not in `Server`, of
which a process may have several.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
import time
from collections.abc import Callable
from typing import Any

from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.lifecycle.environment import system_environment
from millstream.broker.lifecycle.systemd import Systemd
from millstream.broker.server import NotJoinedError, Server
from millstream.env.termination import add_termination_handler
from millstream.records import kernel_is_compiled

_logger = logging.getLogger(__name__)

#: Descriptors for the store, HTTP and flushes, besides those of logs and clients.
SPARE_DESCRIPTORS = 1024
#: Parameters of glibc's mallopt: the size from which memory is mapped and unmapped one by one, and
#: the unused memory above which glibc returns the rest to the system.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD_BYTES = 32 * 1024 * 1024
TRIM_THRESHOLD_BYTES = 64 * 1024 * 1024
#: Requests leave no reference cycles, so frequent collections find nothing and cost latency.
GC_THRESHOLDS = (50_000, 50, 100)
#: Pause between two attempts to join the cluster.
RETRY_S = 1.0


def run(config: BrokerConfig) -> int:
    """Run a broker until a signal stops it; return the exit code of the process."""
    _report_kernels()
    _raise_descriptor_limit(config)
    _keep_freed_memory()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(config))


def _report_kernels() -> None:
    """Warn if the loops over records run as plain Python."""
    if not kernel_is_compiled():
        _logger.warning(
            "the kernels run uncompiled: everything works, but compaction and the Python client "
            "are slower. Install a wheel, or a C compiler and then Millstream again (in a "
            "checkout: `make clean run`)"
        )


def _raise_descriptor_limit(config: BrokerConfig) -> None:
    """Raise the limit of open files to the maximum; warn if the settings allow for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = config.log.log_open_files_max + config.network.max_connections + SPARE_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        _logger.warning(
            "the system grants %d open files; log.open.files.max and max.connections allow for %d: "
            "raise the limit (ulimit -n, LimitNOFILE) or lower them",
            hard,
            wanted,
        )


def _keep_freed_memory() -> None:
    """Make the C library keep freed memory, up to a bound, instead of returning it to the system.

    Every Fetch needs a buffer of up to a few MiB for a moment. Fresh, zeroed pages each time cost a
    quarter of a reader's throughput. Only glibc has these parameters."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
    mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def _freeze_memory() -> None:
    """Exclude all present objects from garbage collection: they live as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory of event loops; None if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        _logger.info("uvloop is not installed; using asyncio's own loop")
        return None
    return uvloop.new_event_loop


async def _serve(config: BrokerConfig) -> int:
    loop = asyncio.get_running_loop()
    stop_requested = asyncio.Event()
    add_termination_handler(loop, stop_requested.set)
    systemd = Systemd(os.environ)
    server = await _start(config, stop_requested)
    if server is None:
        _logger.info("shut down before the broker joined the cluster")
        return 0
    _freeze_memory()
    systemd.ready(f"broker {config.node_id} serves clients")
    try:
        return await _serve_until_stopped(server, stop_requested, systemd)
    finally:
        systemd.close()


async def _serve_until_stopped(
    server: Server, stop_requested: asyncio.Event, systemd: Systemd
) -> int:
    """Wait for a signal or a failure, and shut the broker down; return the exit code."""
    waiting = asyncio.ensure_future(stop_requested.wait())
    waits: set[asyncio.Future[Any]] = {waiting, server.failed}
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    has_failed = server.failed.done()
    if has_failed:
        _logger.error("the broker cannot continue and shuts down: %s", server.failed.result())
    else:
        _logger.info("shutting down")
    systemd.stopping()
    await server.stop()
    _logger.info("shut down")
    return 1 if has_failed else 0


async def _start(config: BrokerConfig, stop_requested: asyncio.Event) -> Server | None:
    """Return a broker that serves clients; None if a signal arrived before it could join.

    Raises as `Server.start` does."""
    # Counted from the first failure: the recovery of logs before it may have taken long.
    deadline: float | None = None
    while True:
        server = Server(config, system_environment(config))
        server.before_joining = _freeze_memory
        try:
            await server.start()
        except NotJoinedError as error:
            now = time.monotonic()
            if deadline is None:
                deadline = now + config.cluster.initial_broker_registration_timeout_ms / 1000
            if stop_requested.is_set():
                return None
            if now >= deadline:
                raise
            _logger.warning(
                "cannot join the cluster yet, retrying for %.0f s more: %s", deadline - now, error
            )
        else:
            return server
        try:
            async with asyncio.timeout(RETRY_S):
                await stop_requested.wait()
        except TimeoutError:
            continue
        return None
