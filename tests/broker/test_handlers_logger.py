"""Levels of loggers over the wire: described, set and deleted at run time, on one broker only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.process.broker_process import BrokerProcess
from harness.raw.raw_client import RawClient
from millstream.model.error import ErrorCode
from millstream.wire.messages.alter_configs import AlterConfigsRequest
from millstream.wire.messages.describe_configs import DescribeConfigsRequest
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest

BROKER_LOGGER = 8
SET, DELETE, APPEND, SUBTRACT = range(4)
MODULE, PACKAGE = "millstream.broker.server", "millstream.broker"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("logger"), {"node.id": 7}) as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.host, broker.port) as connection:
        yield connection
        for name in (MODULE, PACKAGE):
            assert alter(connection, (name, DELETE, None)) is ErrorCode.NONE
        assert alter(connection, ("root", SET, "INFO")) is ErrorCode.NONE


def alter(
    client: RawClient,
    *changes: tuple[str, int, str | None],
    name: str = "7",
    validate_only: bool = False,
) -> ErrorCode:
    configs = [
        IncrementalAlterConfigsRequest.Resource.Config(
            name=logger, config_operation=operation, value=value
        )
        for logger, operation, value in changes
    ]
    resource = IncrementalAlterConfigsRequest.Resource(
        resource_type=BROKER_LOGGER, resource_name=name, configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (row,) = client.call(request).responses
    assert bool(row.error_message) == bool(row.error_code)
    return ErrorCode(row.error_code)


def describe(client: RawClient, name: str, *loggers: str) -> Any:
    resource = DescribeConfigsRequest.Resource(
        resource_type=BROKER_LOGGER, resource_name=name, configuration_keys=list(loggers) or None
    )
    (result,) = client.call(DescribeConfigsRequest(resources=[resource])).results
    return result


def levels(client: RawClient, *loggers: str) -> dict[str, str]:
    result = describe(client, "7", *loggers)
    assert result.error_code == 0
    assert {each.config_source for each in result.configs} <= {6}
    assert not any(each.read_only or each.synonyms for each in result.configs)
    return {each.name: each.value for each in result.configs}


def test_loggers_are_listed(client: RawClient) -> None:
    found = levels(client)
    assert {"root", "millstream", PACKAGE, MODULE} <= set(found)
    assert found["root"] == found[MODULE] == "INFO"
    assert levels(client, MODULE, "nope") == {MODULE: "INFO"}


def test_a_level_applies_to_all_loggers_below(client: RawClient) -> None:
    assert alter(client, (PACKAGE, SET, "DEBUG")) is ErrorCode.NONE
    assert levels(client, "root", PACKAGE, MODULE, "millstream.net") == {
        "root": "INFO",
        PACKAGE: "DEBUG",
        MODULE: "DEBUG",
        **levels(client, "millstream.net"),
    }
    assert levels(client, "millstream.net.connection") == {"millstream.net.connection": "INFO"}
    assert alter(client, (MODULE, SET, "ERROR")) is ErrorCode.NONE
    assert levels(client, PACKAGE, MODULE) == {PACKAGE: "DEBUG", MODULE: "ERROR"}
    assert alter(client, (MODULE, DELETE, None)) is ErrorCode.NONE
    assert levels(client, MODULE) == {MODULE: "DEBUG"}
    assert alter(client, (PACKAGE, DELETE, None)) is ErrorCode.NONE
    assert levels(client, MODULE) == {MODULE: "INFO"}


@pytest.mark.parametrize("level", ["FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"])
def test_every_level_of_kafka_may_be_set(client: RawClient, level: str) -> None:
    for name in ("root", MODULE):
        assert alter(client, (name, SET, level)) is ErrorCode.NONE
        assert levels(client, name) == {name: level}


def test_a_level_filters_log_lines(broker: BrokerProcess, client: RawClient) -> None:
    """A change of a level is logged as a warning, which the level of its logger may filter."""
    own = "millstream.broker.config.logger_resource"

    def is_logged(level: str) -> bool:
        before = broker.log_text().count(f"{MODULE} is {level}")
        assert alter(client, (MODULE, SET, level)) is ErrorCode.NONE
        return broker.log_text().count(f"{MODULE} is {level}") == before + 1

    assert is_logged("DEBUG")
    assert alter(client, (own, SET, "ERROR")) is ErrorCode.NONE
    assert not is_logged("TRACE")
    assert alter(client, (own, DELETE, None)) is ErrorCode.NONE
    assert is_logged("WARN")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ((MODULE, APPEND, "INFO"), ErrorCode.INVALID_REQUEST),
        ((MODULE, SUBTRACT, "INFO"), ErrorCode.INVALID_REQUEST),
        ((MODULE, 9, "INFO"), ErrorCode.INVALID_REQUEST),
        ((MODULE, SET, None), ErrorCode.INVALID_REQUEST),
        (("root", DELETE, None), ErrorCode.INVALID_REQUEST),
        ((MODULE, SET, "BOGUS"), ErrorCode.INVALID_CONFIG),
        ((MODULE, SET, "debug"), ErrorCode.INVALID_CONFIG),
        (("nope", SET, "INFO"), ErrorCode.INVALID_CONFIG),
        (("nope", DELETE, None), ErrorCode.INVALID_CONFIG),
        (("", SET, "INFO"), ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_level_changes_are_rejected(
    client: RawClient, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    before = levels(client)
    assert alter(client, ("millstream", SET, "ERROR"), change) is code
    assert levels(client) == before, "all changes of a request, or none"


def test_a_request_may_name_a_logger_once(client: RawClient) -> None:
    change = (MODULE, SET, "DEBUG")
    assert alter(client, change, change) is ErrorCode.INVALID_REQUEST


def test_validation_changes_nothing(client: RawClient) -> None:
    assert alter(client, (MODULE, SET, "DEBUG"), validate_only=True) is ErrorCode.NONE
    assert alter(client, (MODULE, SET, "no"), validate_only=True) is ErrorCode.INVALID_CONFIG
    assert levels(client, MODULE) == {MODULE: "INFO"}


@pytest.mark.parametrize("name", ["", "1", "x", "07"])
def test_only_the_broker_of_the_loggers_serves_them(client: RawClient, name: str) -> None:
    assert describe(client, name).error_code == ErrorCode.INVALID_REQUEST
    assert alter(client, (MODULE, SET, "DEBUG"), name=name) is ErrorCode.INVALID_REQUEST


def test_alter_configs_has_no_loggers(client: RawClient) -> None:
    config = AlterConfigsRequest.Resource.Config(name=MODULE, value="DEBUG")
    resource = AlterConfigsRequest.Resource(
        resource_type=BROKER_LOGGER, resource_name="7", configs=[config]
    )
    (row,) = client.call(AlterConfigsRequest(resources=[resource])).responses
    assert row.error_code == ErrorCode.INVALID_REQUEST


def test_a_restart_resets_the_levels(broker: BrokerProcess) -> None:
    with RawClient(broker.host, broker.port) as client:
        assert alter(client, (MODULE, SET, "DEBUG")) is ErrorCode.NONE
    broker.stop()
    broker.start()
    with RawClient(broker.host, broker.port) as client:
        assert levels(client, MODULE) == {MODULE: "INFO"}
