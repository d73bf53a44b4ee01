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
from millstream.cli.support.failure import CommandError, ExitCode, from_kafka_error, no_connection
from millstream.cli.support.quantity import Duration, duration_option
from millstream.model.bootstrap import SERVERS_VARIABLE

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient, ClusterMetadata, DescribeClusterResult

    from millstream.client.admin import Admin

TIMEOUT_S_DEFAULT: Final = Duration.parse("10s")
#: The timeout of the first metadata request. It doubles with each attempt, so that a broker with
#: much metadata gets enough time.
_FIRST_METADATA_S: Final = 0.3
_POLL_S: Final = 0.02
#: The loggers of librdkafka's lines: of `Connection.admin`, and of Millstream's clients.
_LIBRARY_LOGGER: Final = "millstream.cli.librdkafka"
_CLIENT_LOGGER: Final = "millstream.client"
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
        "_all_down",
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
        self._all_down = False
        #: Whether the last admin client got a response. Later connection errors may pass.
        self._is_reached = False

    # Millstream's clients

    def open_admin(self) -> Admin:
        """Return an admin client that has reached the cluster.

        Fails at once if all brokers are down. librdkafka sends the request to the controller that
        it knows. If that broker has just died, only a new client learns of the next controller."""
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
                raise no_connection(self.servers, self._last_error or "it did not respond in time")

    def _reached_admin(self, timeout_s: float) -> Admin:
        from millstream.client.admin import Admin

        self._is_reached = False
        config = self.client_config() | {"error_cb": self._on_error_of_admin}
        admin = Admin(self.servers, timeout=timeout_s, config=config)
        try:
            admin.describe_cluster()
        except BaseException:
            admin.close()
            raise
        self._is_reached = True
        admin.timeout = self.timeout_s
        return admin

    def client_config(self) -> dict[str, Any]:
        """Return the `config` of the command's own producers and consumers."""
        _silence()
        config = self._config({})
        del config["error_cb"], config["bootstrap.servers"]
        return config

    def _on_error_of_admin(self, error: KafkaError) -> None:
        self._on_error(error)
        if self._all_down and not self._is_reached:
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
        what: str = "",
        topic: str | None = None,
        group: str | None = None,
    ) -> CommandError:
        """Return the failure for an error of Millstream's clients or of librdkafka.

        `what` names the action for an error of librdkafka. If the error says that a topic or group
        is missing, it is `topic` or `group`."""
        from millstream.client.error import MillstreamError

        if isinstance(error, MillstreamError):
            return client_failure(error, self.servers, topic, group)
        kafka_error = error.args[0] if error.args else None
        if kafka_error is None or not hasattr(kafka_error, "code"):
            return CommandError(ExitCode.FAILED, f"{what}: {error}")
        return from_kafka_error(kafka_error, what, self.servers, topic)

    # librdkafka's admin client, for requests that `Admin` does not have

    def admin(self) -> AdminClient:
        """Return librdkafka's admin client."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        _silence()
        try:
            return AdminClient(self._config({}), logger=logging.getLogger(_LIBRARY_LOGGER))
        except KafkaException as exception:
            reason = exception.args[0].str().rstrip(".")
            raise CommandError(
                ExitCode.USAGE, f"the client's properties are wrong: {reason}; see --property."
            ) from None

    def metadata(self, client: AdminClient, topic: str | None = None) -> ClusterMetadata:
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


def _list_topics(client: AdminClient, topic: str | None, timeout_s: float) -> ClusterMetadata:
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


def _silence() -> None:
    """Discard librdkafka's log lines, which repeat the command's error several times."""
    for name in (_LIBRARY_LOGGER, _CLIENT_LOGGER):
        logger = logging.getLogger(name)
        logger.propagate = False
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


class _AllBrokersDown(Exception):  # noqa: N818
    """Ends the wait for a response while no broker can be reached."""
