"""The way from a command to a broker: addresses, client properties, and failing soon.

Every command talks through confluent-kafka (librdkafka), so all of them work with any broker that
speaks the protocol. librdkafka goes on trying until its timeout; a person at a terminal wants to
know at once that nothing listens, so `Connection` gives up as soon as all brokers are down.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

import typer

from millstream.cli.support.failure import CommandError, ExitCode, from_kafka_error, no_connection

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient, ClusterMetadata, DescribeClusterResult

Client = TypeVar("Client", bound="AdminClient | Producer | Consumer")

TIMEOUT_S_DEFAULT: Final = 10.0
#: How long to wait before looking whether all brokers are down; doubled at each look, so that
#: a broker with much to tell gets the time for it.
_FIRST_LOOK_S: Final = 0.3
_REACH_POLL_S: Final = 0.02
#: The same for an answer of the controller, which may be about to be replaced.
_FIRST_REACH_S: Final = 1.0

ServersOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar="MILLSTREAM_BOOTSTRAP_SERVERS",
        metavar="HOST:PORT,...",
        help="Brokers to ask first.",
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
    typer.Option(
        "--timeout",
        min=0.1,
        metavar="SECONDS",
        help="How long to wait for an answer.",
        rich_help_panel="Connection",
    ),
]
SERVERS_DEFAULT: Final = "127.0.0.1:9092"


class Connection:
    """Where the brokers are and how to talk to them; makes clients and remembers why they fail."""

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
        """What the cluster has, of one topic or all; fails soon when nobody listens."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + self.timeout_s
        wait = _FIRST_LOOK_S
        while True:
            remaining = deadline - time.monotonic()
            try:
                return _list_topics(client, topic, max(0.05, min(remaining, wait)))
            except KafkaException as exception:
                failure = self.failure(exception, "asking for metadata")
                if failure.code is not ExitCode.NO_CONNECTION:
                    raise failure from None
            client.poll(0)
            wait *= 2
            if remaining <= 0 or self._all_down:
                raise no_connection(self.servers, self._last_error or "it did not answer in time")

    def reach(self) -> tuple[AdminClient, DescribeClusterResult]:
        """A client that a broker has answered, and who is there; or fail soon. Costs little
        however many topics exist.

        The library sends such requests to the controller, and waits for the one it was named. If
        that one has just died, only a client that asks anew hears of the next."""
        deadline = time.monotonic() + self.timeout_s
        wait = _FIRST_REACH_S
        while True:
            remaining = deadline - time.monotonic()
            admin = self.admin()
            found = self._describe(admin, max(_REACH_POLL_S, min(remaining, wait)))
            if found is not None:
                return admin, found
            wait *= 2
            if remaining <= 0 or self._all_down:
                raise no_connection(self.servers, self._last_error or "it did not answer in time")

    def _describe(self, admin: AdminClient, timeout_s: float) -> DescribeClusterResult | None:
        """Who is there; None if nobody said so in time."""
        from confluent_kafka import KafkaException

        answer = admin.describe_cluster(request_timeout=timeout_s)
        while not answer.done() and not self._all_down:
            admin.poll(_REACH_POLL_S)
        if not answer.done():
            return None
        try:
            found: DescribeClusterResult = answer.result()
        except KafkaException as exception:
            failure = self.failure(exception, "asking who is there")
            if failure.code is not ExitCode.NO_CONNECTION:
                raise failure from None
            return None
        return found

    def failure(self, exception: Exception, what: str, topic: str | None = None) -> CommandError:
        """What a KafkaException means; `what` says what was being done."""
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


def _list_topics(
    client: AdminClient | Producer | Consumer, topic: str | None, timeout_s: float
) -> ClusterMetadata:
    if topic is None:
        return client.list_topics(timeout=timeout_s)
    return client.list_topics(topic, timeout=timeout_s)


def parse_pairs(pairs: Iterable[str], option: str) -> dict[str, str]:
    """`key=value` arguments as a dict; a later one wins."""
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
    """librdkafka's reason without its own bookkeeping: `.../bootstrap: Connect to ... failed: x
    (after 0ms in state CONNECT)` becomes `Connect to ... failed: x`."""
    head, _, rest = reason.partition("]: ") if reason.startswith("[") else ("", "", reason)
    text = rest or head
    if "/bootstrap: " in text:
        text = text.partition("/bootstrap: ")[2]
    return text.partition(" (after ")[0]


def _silent_logger() -> logging.Logger:
    """librdkafka's own log lines would say the same as our error, several times."""
    logger = logging.getLogger("millstream.cli.librdkafka")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger
