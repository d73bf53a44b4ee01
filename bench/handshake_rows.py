"""The rows about connections with TLS: logins per second, and the memory of idle connections."""

from __future__ import annotations

import resource
import socket
import ssl
import time

from bench.brokers import Target
from bench.case import Case, Figure, Plan, Section

IDLE_CONNECTIONS = 5_000
HANDSHAKES = 1_000
SETTLE_SECONDS = 3.0
KIBIBYTE = 1024
#: Descriptors beside the idle connections.
SPARE_FILES = 200


def section() -> Section:
    return Section(
        "connections",
        True,
        [
            Case("handshakes", measure_handshakes),
            Case("idle TLS connections", measure_idle_connections),
        ],
    )


def measure_handshakes(broker: Target, plan: Plan) -> list[Figure]:
    """Measure whole TLS handshakes, one after the other, and the broker's CPU time for each."""
    context = _context(broker)
    before = broker.usage().cpu_seconds
    begin = time.monotonic()
    for _ in range(HANDSHAKES):
        _connect(broker, context).close()
    seconds = time.monotonic() - begin
    spent = broker.usage().cpu_seconds - before
    return [
        Figure("TLS handshakes", HANDSHAKES / seconds, "handshakes/s", higher_is_better=True),
        Figure("TLS handshake, broker CPU", spent / HANDSHAKES * 1000, "ms", False),
    ]


def measure_idle_connections(broker: Target, plan: Plan) -> list[Figure]:
    """Measure the memory of idle connections after their handshakes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE_CONNECTIONS + SPARE_FILES
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    context = _context(broker)
    before = broker.usage().resident_bytes
    connections: list[ssl.SSLSocket] = []
    try:
        for _ in range(IDLE_CONNECTIONS):
            connections.append(_connect(broker, context))  # noqa: PERF401  # closed after an error
        time.sleep(SETTLE_SECONDS)
        after = broker.usage().resident_bytes
    finally:
        for connection in connections:
            connection.close()
    each = (after - before) / IDLE_CONNECTIONS / KIBIBYTE
    return [Figure("memory of an idle TLS connection", each, "KiB", higher_is_better=False)]


def _context(broker: Target) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=broker.client_properties["ssl.ca.location"])


def _connect(broker: Target, context: ssl.SSLContext) -> ssl.SSLSocket:
    host, _, port = broker.bootstrap.rpartition(":")
    plain = socket.create_connection((host, int(port)), timeout=10)
    return context.wrap_socket(plain, server_hostname=host)
