"""The pytest plugin: a real broker as a fixture. pytest finds it by its entry point.

Fixtures:

    millstream_broker          the broker of this test: the session's, or a broker of its own if the
                               test has the mark `millstream_fresh_broker` or the ini option
                               `millstream_broker_scope` is `function`. Its faults end with the test
    millstream_session_broker  the session's broker, for fixtures that outlive a test
    millstream_secure_broker   a broker with TLS, the users `admin` and `alice`, and ACLs, for the
                               whole session; see `millstream.testing.secure_broker`
    millstream_topic           a new topic with one partition, deleted when the test ends
    millstream_topic_factory   makes such topics: `factory(partitions=3, configs={...})`
    millstream_group           the name of an unused group
    millstream_producer        a `millstream.Producer`, closed when the test ends; that raises the
                               delivery errors that the test has not consumed
    millstream_consumer        a `millstream.Consumer` that reads `millstream_topic` from its start,
                               in `millstream_group`, and commits only on request
    millstream_confluent_producer, millstream_confluent_consumer
                               the same as bare clients of confluent-kafka

Every test session loads this module, also sessions that do not use it. So the broker and the client
are imported when a fixture first needs them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    import confluent_kafka

    from millstream.client import Consumer, Producer
    from millstream.testing.broker import LocalBroker
    from millstream.testing.secure_broker import SecureBroker

_MARK: Final = "millstream_fresh_broker"
_SCOPE: Final = "millstream_broker_scope"
_SETTINGS: Final = "millstream_broker_settings"
_FLUSH_S_MAX: Final = 30.0
#: Clients find a restarted broker soon.
_RECONNECT: Final = {"reconnect.backoff.max.ms": 200}
#: Members learn about rebalances by heartbeats.
_MEMBER: Final = {"heartbeat.interval.ms": 200, **_RECONNECT}
_NAME_CHARACTERS_MAX: Final = 60

_numbers = count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        _SCOPE,
        "session: tests share a Millstream broker (default); function: each test has its own",
        default="session",
    )
    parser.addini(
        _SETTINGS,
        "settings of Millstream brokers in tests, one KEY=VALUE per line",
        type="linelist",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARK}(settings=None): the test has a Millstream broker of its own, with these settings",
    )


class TopicFactory(Protocol):
    """The type of `millstream_topic_factory`."""

    def __call__(self, partitions: int = 1, configs: Mapping[str, object] | None = None) -> str: ...


@pytest.fixture(scope="session")
def millstream_session_broker(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalBroker]:
    """Return the broker that tests share."""
    with _broker(pytestconfig, tmp_path_factory.mktemp("millstream"), {}) as broker:
        yield broker


@pytest.fixture(scope="session")
def millstream_secure_broker(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecureBroker]:
    """Return a broker with TLS, users and ACLs. Only `admin` has rights at first."""
    from millstream.testing.secure_broker import SecureBroker

    settings = _ini_settings(pytestconfig.getini(_SETTINGS))
    with SecureBroker(tmp_path_factory.mktemp("millstream-secure"), settings) as broker:
        yield broker


@pytest.fixture
def millstream_broker(request: pytest.FixtureRequest) -> Iterator[LocalBroker]:
    """Return the broker of this test. Its faults are cleared when the test ends."""
    mark = request.node.get_closest_marker(_MARK)
    if mark is None and not _is_fresh_by_default(request.config):
        broker: LocalBroker = request.getfixturevalue("millstream_session_broker")
        if not broker.is_running:
            # An earlier test has stopped it.
            broker.start()
        yield broker
        broker.clear_faults()
        return
    settings = _mark_settings(mark) if mark is not None else {}
    folder = request.getfixturevalue("tmp_path_factory").mktemp("millstream")
    with _broker(request.config, folder, settings) as broker:
        yield broker


@pytest.fixture
def millstream_topic_factory(
    request: pytest.FixtureRequest, millstream_broker: LocalBroker
) -> Iterator[TopicFactory]:
    """Return a function that makes topics, which are deleted when the test ends."""
    from millstream.model.error import BrokerError, ErrorCode

    made: list[str] = []

    def make(partitions: int = 1, configs: Mapping[str, object] | None = None) -> str:
        name = _fresh_name(request.node.name)
        millstream_broker.create_topic(name, partitions, configs)
        made.append(name)
        return name

    yield make
    if not millstream_broker.is_running:
        return
    for name in made:
        try:
            millstream_broker.delete_topic(name)
        except BrokerError as error:
            # The test may have deleted it itself.
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise


@pytest.fixture
def millstream_topic(millstream_topic_factory: TopicFactory) -> str:
    """Return a new topic with one partition, which is deleted when the test ends."""
    return millstream_topic_factory()


@pytest.fixture
def millstream_group(request: pytest.FixtureRequest) -> str:
    """Return the name of an unused group."""
    return _fresh_name(request.node.name)


@pytest.fixture
def millstream_producer(millstream_broker: LocalBroker) -> Iterator[Producer]:
    """Return a producer; its records are delivered when the test ends."""
    from millstream.client import Producer, TimedOut

    producer = Producer(millstream_broker.bootstrap_servers, config=_RECONNECT)
    yield producer
    if millstream_broker.is_running:
        millstream_broker.clear_faults()
        producer.close(_FLUSH_S_MAX)
    else:
        # No broker accepts the pending records.
        with contextlib.suppress(TimedOut):
            producer.close(0)


@pytest.fixture
def millstream_consumer(
    millstream_broker: LocalBroker, millstream_topic: str, millstream_group: str
) -> Iterator[Consumer]:
    """Return a consumer that reads `millstream_topic` from its start and commits on request."""
    from millstream.client import Consumer

    consumer = Consumer(
        millstream_broker.bootstrap_servers,
        topics=[millstream_topic],
        group_id=millstream_group,
        commit_interval=0,
        config=_MEMBER,
    )
    yield consumer
    _make_reachable(millstream_broker)
    consumer.close()


@pytest.fixture
def millstream_confluent_producer(
    millstream_broker: LocalBroker,
) -> Iterator[confluent_kafka.Producer]:
    """Return an idempotent producer of confluent-kafka, flushed when the test ends."""
    from confluent_kafka import Producer

    servers = {"bootstrap.servers": millstream_broker.bootstrap_servers}
    producer = Producer({**servers, "enable.idempotence": True, **_RECONNECT})
    yield producer
    if millstream_broker.is_running:
        millstream_broker.clear_faults()
        producer.flush(_FLUSH_S_MAX)


@pytest.fixture
def millstream_confluent_consumer(
    millstream_broker: LocalBroker, millstream_topic: str, millstream_group: str
) -> Iterator[confluent_kafka.Consumer]:
    """Return a consumer of confluent-kafka with the settings of `millstream_consumer`."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": millstream_broker.bootstrap_servers,
            "group.id": millstream_group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **_MEMBER,
        }
    )
    consumer.subscribe([millstream_topic])
    yield consumer
    _make_reachable(millstream_broker)
    consumer.close()


def _make_reachable(broker: LocalBroker) -> None:
    """Start the broker without faults: a member that cannot leave its group retries for 45 s."""
    broker.clear_faults()
    if not broker.is_running:
        broker.start()


def _broker(config: pytest.Config, folder: Path, settings: Mapping[str, object]) -> LocalBroker:
    from millstream.testing.broker import LocalBroker

    return LocalBroker(folder, {**_ini_settings(config.getini(_SETTINGS)), **settings})


def _is_fresh_by_default(config: pytest.Config) -> bool:
    scope = config.getini(_SCOPE)
    if scope not in ("session", "function"):
        raise pytest.UsageError(f"{_SCOPE} is {scope!r}; it must be session or function")
    return bool(scope == "function")


def _ini_settings(lines: list[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"{_SETTINGS}: {line!r} is not KEY=VALUE")
        settings[name.strip()] = value.strip()
    return settings


def _mark_settings(mark: pytest.Mark) -> Mapping[str, object]:
    """Return the one argument of the mark, positional or by name."""
    read: Callable[..., Mapping[str, object]] = lambda settings=None: settings or {}  # noqa: E731
    try:
        return read(*mark.args, **mark.kwargs)
    except TypeError:
        raise pytest.UsageError(
            f"@pytest.mark.{_MARK} takes one argument: settings, as a dict"
        ) from None


def _fresh_name(test: str) -> str:
    """Return a unique name with the name of the test, in characters that topics may have."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", test)[:_NAME_CHARACTERS_MAX].strip("-")
    return f"{readable}-{next(_numbers)}"
