"""Every API that may fail in a task has an error response, in every version."""

from __future__ import annotations

import inspect
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from broker.api_case import codes
from harness.in_process.reply_receiver import RecordedReplies
from harness.schema_values import full_message_of
from millstream.broker.context import ConnectedClient, Context
from millstream.broker.dispatch import Api
from millstream.broker.error_response import error_response
from millstream.broker.handlers import api_table
from millstream.broker.metrics.broker_metrics import Metrics
from millstream.metadata.cluster_record import BrokerRecord, Endpoint
from millstream.model.error import ErrorCode
from millstream.wire.api import ApiKey
from millstream.wire.schema import codec

CODE = ErrorCode.KAFKA_STORAGE_ERROR
LISTENER = "PLAINTEXT"
APIS = list(api_table(Metrics(), has_telemetry=True))


def has_task(api: Api) -> bool:
    """Return whether requests of the API may run as tasks."""
    module = sys.modules[inspect.unwrap(api.handle).__module__]
    return any(inspect.iscoroutinefunction(each) for each in vars(module).values())


CASES = [
    (api, version)
    for api in APIS
    if has_task(api)
    for version in range(api.version_min, api.version_max + 1)
]


def context(version: int) -> Context:
    broker = BrokerRecord(node_id=1, endpoints=(Endpoint(LISTENER, "here", 9092),))
    services: Any = SimpleNamespace(
        brokers=[broker],
        catalog=SimpleNamespace(cluster_id="c"),
        config=SimpleNamespace(node_id=1),
        controller_id=1,
    )
    return Context(
        services, LISTENER, version, "test", ConnectedClient("127.0.0.1", 0), 0.0, RecordedReplies()
    )


def test_apis_that_run_as_tasks_are_found() -> None:
    keys = {api.key for api, _ in CASES}
    assert {ApiKey.METADATA, ApiKey.CREATE_TOPICS, ApiKey.DELETE_RECORDS} <= keys


@pytest.mark.parametrize(
    ("api", "version"), CASES, ids=[f"{api.name}-{version}" for api, version in CASES]
)
def test_an_error_response_has_the_error_and_can_be_encoded(api: Api, version: int) -> None:
    request = full_message_of(api.request, version)
    response = error_response(api, request, context(version), CODE)
    segments = codec(api.response, version).encode(response)
    received = codec(api.response, version).decode(b"".join(map(bytes, segments)))  # type: ignore[arg-type]
    assert CODE in codes(received)
