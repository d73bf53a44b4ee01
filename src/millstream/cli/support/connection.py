"""The connection options of commands, and librdkafka clients made from them.

librdkafka retries until its timeout. A user at a terminal wants to know at once that nothing
listens, so `Connection` gives up as soon as all brokers are down.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

import typer

from millstream.cli.support.failure import CommandError, ExitCode, from_kafka_error, no_connection
from millstream.cli.support.quantity import Duration, duration_option
from millstream.model.bootstrap import SERVERS_VARIABLE

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient, ClusterMetadata, DescribeClusterResult

Client = TypeVar("Client", bound="AdminClient | Producer | Consumer")

TIMEOUT_S_DEFAULT: Final = Duration.parse("10s")
#: The timeout of the first metadata request. It doubles with each attempt, so that a broker with
#: much metadata gets enough time.
_FIRST_METADATA_S: Final = 0.3
_POLL_S: Final = 0.02
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

    __slots__ = ("_all_down", "_last_error", "_properties", "servers", "timeout_s")

    def __init__(self, servers: str, properties: Iterable[str] | None, timeout_s: float) -> None:
        self.servers = servers
        self.timeout_s = timeout_s
        self._properties = parse_pairs(properties or (), "--property")
        self._last_error = ""
        self._all_down = False

    def admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return self._make(AdminClient, {})

    def producer(self, properties: dict[str, Any]) -> Producer:
        from confluent_kafka import Producer

        return self._make(Producer, properties)

    def consumer(self, properties: dict[str, Any]) -> Consumer:
        from confluent_kafka import Consumer

        return self._make(Consumer, properties)

    def metadata(
        self, client: AdminClient | Producer | Consumer, topic: str | None = None
    ) -> ClusterMetadata:
        """Fetch the metadata of one topic or all; fail at once if all brokers are down."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + self.timeout_s
        wait = _FIRST_METADATA_S
        while True:
            remaining = deadline - time.monotonic()
            try:
                return _list_topics(client, topic, max(0.05, min(remaining, wait)))
            except KafkaException as exception:
                failure = self.failure(exception, "fetching metadata")
                if failure.code is not ExitCode.NO_CONNECTION:
                    raise failure from None
            client.poll(0)
            wait *= 2
            if remaining <= 0 or self._all_down:
                raise no_connection(self.servers, self._last_error or "it did not respond in time")

    def reach(self) -> tuple[AdminClient, DescribeClusterResult]:
        """Return a client that has reached the cluster, and the cluster's description.

        Costs little however many topics exist; fails at once if all brokers are down. librdkafka
        sends the request to the controller that it knows. If that broker has just died, only a new
        client learns of the next controller."""
        deadline = time.monotonic() + self.timeout_s
        wait = _FIRST_CONTROLLER_S
        while True:
            remaining = deadline - time.monotonic()
            admin = self.admin()
            found = self._describe(admin, max(_POLL_S, min(remaining, wait)))
            if found is not None:
                return admin, found
            wait *= 2
            if remaining <= 0 or self._all_down:
                raise no_connection(self.servers, self._last_error or "it did not respond in time")

    def _describe(self, admin: AdminClient, timeout_s: float) -> DescribeClusterResult | None:
        """Return the cluster's description, or None without a response in time."""
        from confluent_kafka import KafkaException

        future = admin.describe_cluster(request_timeout=timeout_s)
        while not future.done() and not self._all_down:
            admin.poll(_POLL_S)
        if not future.done():
            return None
        try:
            found: DescribeClusterResult = future.result()
        except KafkaException as exception:
            failure = self.failure(exception, "describing the cluster")
            if failure.code is not ExitCode.NO_CONNECTION:
                raise failure from None
            return None
        return found

    def failure(self, exception: Exception, what: str, topic: str | None = None) -> CommandError:
        """Return the failure for a KafkaException; `what` names the action."""
        error = exception.args[0] if exception.args else None
        if error is None or not hasattr(error, "code"):
            return CommandError(ExitCode.FAILED, f"{what}: {exception}")
        return from_kafka_error(error, what, self.servers, topic)

    def _make(self, client: type[Client], properties: dict[str, Any]) -> Client:
        from confluent_kafka import KafkaException

        try:
            return client(self._config(properties), logger=_silent_logger())
        except KafkaException as exception:
            reason = exception.args[0].str().rstrip(".")
            raise CommandError(
                ExitCode.USAGE, f"the client's properties are wrong: {reason}; see --property."
            ) from None

    def _config(self, properties: dict[str, Any]) -> dict[str, Any]:
        return {
            "client.id": "millstream-cli",
            "socket.connection.setup.timeout.ms": max(1000, int(self.timeout_s * 1000)),
            "reconnect.backoff.max.ms": 1000,
            **properties,
            **self._properties,
            "bootstrap.servers": self.servers,
            "error_cb": self._on_error,
        }

    def _on_error(self, error: KafkaError) -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self._all_down = True
        else:
            self._last_error = _short(str(error.str()))


def client_properties(
    servers: str, properties: Iterable[str] | None, client_id: str
) -> dict[str, str]:
    """Return librdkafka's properties for clients that a command does not make itself."""
    given = parse_pairs(properties or (), "--property")
    return given | {"bootstrap.servers": servers, "client.id": client_id}


def _list_topics(
    client: AdminClient | Producer | Consumer, topic: str | None, timeout_s: float
) -> ClusterMetadata:
    if topic is None:
        return client.list_topics(timeout=timeout_s)
    return client.list_topics(topic, timeout=timeout_s)


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


def _silent_logger() -> logging.Logger:
    """Discard librdkafka's log lines, which repeat the command's error several times."""
    logger = logging.getLogger("millstream.cli.librdkafka")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger
