"""The connection options of commands, and clients made from them.

librdkafka retries until its timeout. A user at a terminal wants to know at once that nothing
listens, so `Connection` gives up as soon as all brokers are down.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from millstream.cli.support.client_failure import client_failure
from millstream.cli.support.failure import CommandError, ExitCode, no_connection
from millstream.cli.support.quantity import Duration, duration_option
from millstream.model.bootstrap import SERVERS_VARIABLE

if TYPE_CHECKING:
    from millstream.client.admin import Admin, ClusterDescription

TIMEOUT_S_DEFAULT: Final = Duration.parse("10s")
_POLL_S: Final = 0.02
#: The logger of librdkafka's lines.
_CLIENT_LOGGER: Final = "millstream.client"
#: librdkafka's name of the error that all brokers are down.
_ALL_DOWN: Final = "_ALL_BROKERS_DOWN"
#: Why there is no response if librdkafka reports no error.
_SILENT: Final = (
    "it did not respond in time (a listener with TLS needs -X security.protocol=SSL or SASL_SSL)"
)
#: The timeout of the first request to the controller, which may be about to change.
_FIRST_CONTROLLER_S: Final = 1.0

ServersOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar=SERVERS_VARIABLE,
        metavar="HOST:PORT,...",
        help="Brokers to connect to first.",
        rich_help_panel="Connection",
    ),
]
PropertiesOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "-X",
        metavar="KEY=VALUE",
        help="A librdkafka client property (security.protocol, ssl.ca.location, ...). Repeatable.",
        rich_help_panel="Connection",
    ),
]
TimeoutOption: TypeAlias = Annotated[
    float,
    duration_option(
        "--timeout",
        minimum="100ms",
        help="How long to wait for a response.",
        rich_help_panel="Connection",
    ),
]


class Connection:
    """The brokers' addresses and client properties. Makes clients and records why they fail."""

    __slots__ = (
        "_is_reached",
        "_last_error",
        "_properties",
        "servers",
        "timeout_s",
    )

    def __init__(self, servers: str, properties: Iterable[str] | None, timeout_s: float) -> None:
        self.servers = servers
        self.timeout_s = timeout_s
        self._properties = parse_pairs(properties or (), "--property")
        self._last_error = ""
        #: Whether the last admin client got a response. Later connection errors may pass.
        self._is_reached = False

    def open_admin(self) -> Admin:
        """Return an admin client that has reached the cluster; see `reach`."""
        return self.reach()[0]

    def reach(self) -> tuple[Admin, ClusterDescription]:
        """Return an admin client that has reached the cluster, and the cluster's description.

        Costs little however many topics exist; fails at once if all brokers are down. librdkafka
        sends the request to the controller that it knows. If that broker has just died, only a new
        client learns of the next controller."""
        from millstream.client.error import MillstreamError

        deadline = time.monotonic() + self.timeout_s
        wait = _FIRST_CONTROLLER_S
        while True:
            remaining = deadline - time.monotonic()
            try:
                return self._reached_admin(max(_POLL_S, min(remaining, wait)))
            except _AllBrokersDown:
                remaining = 0.0
            except MillstreamError as error:
                failure = self.failure(error)
                if failure.code is not ExitCode.NO_CONNECTION:
                    raise failure from None
            wait *= 2
            if remaining <= 0:
                raise no_connection(self.servers, self._last_error or _SILENT)

    def _reached_admin(self, timeout_s: float) -> tuple[Admin, ClusterDescription]:
        from millstream.client.admin import Admin

        self._is_reached = False
        config = self.client_config() | {"error_cb": self._on_error}
        admin = Admin(self.servers, timeout=timeout_s, config=config)
        try:
            described = admin.describe_cluster()
        except BaseException:
            admin.close()
            raise
        self._is_reached = True
        admin.timeout = self.timeout_s
        return admin, described

    def client_config(self) -> dict[str, Any]:
        """Return the `config` of the command's own producers and consumers."""
        _silence()
        return {
            "client.id": "millstream-cli",
            "socket.connection.setup.timeout.ms": max(1000, int(self.timeout_s * 1000)),
            "reconnect.backoff.max.ms": 1000,
            **self._properties,
        }

    def _on_error(self, error: Any) -> None:
        """Note an error of the connection, a KafkaError of librdkafka."""
        if error.name() != _ALL_DOWN:
            self._last_error = _short(str(error.str()))
        elif not self._is_reached:
            raise _AllBrokersDown

    @contextmanager
    def failing(self, *, topic: str | None = None, group: str | None = None) -> Iterator[None]:
        """Turn errors of Millstream's clients into the command's failure; see `failure`."""
        from millstream.client.error import MillstreamError

        try:
            yield
        except MillstreamError as error:
            raise self.failure(error, topic=topic, group=group) from None

    def failure(
        self,
        error: Exception,
        topic: str | None = None,
        group: str | None = None,
    ) -> CommandError:
        """Return the failure for an error of Millstream's clients.

        If the error says that a topic or group is missing, it is `topic` or `group`."""
        return client_failure(error, self.servers, topic, group)


def client_properties(
    servers: str, properties: Iterable[str] | None, client_id: str
) -> dict[str, str]:
    """Return librdkafka's properties for clients that a command does not make itself."""
    given = parse_pairs(properties or (), "--property")
    return given | {"bootstrap.servers": servers, "client.id": client_id}


def parse_pairs(pairs: Iterable[str], option: str) -> dict[str, str]:
    """Parse `key=value` arguments; a later one wins."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise CommandError(
                ExitCode.USAGE,
                f"{option} {pair!r} is not KEY=VALUE, for example retention.ms=60000.",
            )
        found[key.strip()] = value
    return found


def _short(reason: str) -> str:
    """Shorten librdkafka's reason: `.../bootstrap: Connect to ... failed: x (after 0ms in state
    CONNECT)` becomes `Connect to ... failed: x`."""
    head, _, rest = reason.partition("]: ") if reason.startswith("[") else ("", "", reason)
    text = rest or head
    if "/bootstrap: " in text:
        text = text.partition("/bootstrap: ")[2]
    return text.partition(" (after ")[0]


def _silence() -> None:
    """Discard librdkafka's log lines, which repeat the command's error several times."""
    logger = logging.getLogger(_CLIENT_LOGGER)
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


class _AllBrokersDown(Exception):  # noqa: N818
    """Ends the wait for a response while no broker can be reached."""
