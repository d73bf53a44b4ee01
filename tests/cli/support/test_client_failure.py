from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from millstream.cli.support.client_failure import client_failure
from millstream.cli.support.failure import ExitCode
from millstream.client import BrokerError, MillstreamError, TimedOut, UsageError
from millstream.client.error import from_kafka

SERVERS = "127.0.0.1:9092"


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (UsageError("A name is wrong."), ExitCode.USAGE, "a name is wrong."),
        (TimedOut("Listing topics: Local: Timed out"), ExitCode.NO_CONNECTION, "millstream serve"),
        (BrokerError("Reading: gone.", "_TRANSPORT", -195), ExitCode.NO_CONNECTION, "reading"),
        (
            BrokerError("Describing topic 'a': Broker: no.", "UNKNOWN_TOPIC_OR_PART", 3),
            ExitCode.NOT_FOUND,
            "topic 'a' does not exist",
        ),
        (
            BrokerError("Creating topic 'a': exists.", "TOPIC_ALREADY_EXISTS", 36),
            ExitCode.EXISTS,
            "topic 'a' exists",
        ),
        (
            BrokerError("Topic 'a' has no partition 4", "UNKNOWN_TOPIC_OR_PART", 3),
            ExitCode.NOT_FOUND,
            "topic 'a' has no partition 4",
        ),
        (
            BrokerError("x", "GROUP_ID_NOT_FOUND", 69),
            ExitCode.NOT_FOUND,
            "group 'g' does not exist",
        ),
        (BrokerError("x", "NON_EMPTY_GROUP", 68), ExitCode.FAILED, "millstream group members g"),
        (
            BrokerError("Changing: Broker: too large.", "POLICY_VIOLATION", 44),
            ExitCode.FAILED,
            "changing: too large.",
        ),
    ],
)
def test_failures(error: MillstreamError, code: ExitCode, says: str) -> None:
    failure = client_failure(error, SERVERS, group="g")
    assert failure.code is code
    assert says in str(failure)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, ExitCode.NOT_FOUND),
        (KafkaError._UNKNOWN_PARTITION, ExitCode.NOT_FOUND),
        (KafkaError.TOPIC_ALREADY_EXISTS, ExitCode.EXISTS),
        (KafkaError._TRANSPORT, ExitCode.NO_CONNECTION),
        (KafkaError._ALL_BROKERS_DOWN, ExitCode.NO_CONNECTION),
        (KafkaError._MSG_TIMED_OUT, ExitCode.NO_CONNECTION),
        (KafkaError.REQUEST_TIMED_OUT, ExitCode.NO_CONNECTION),
        (KafkaError.INVALID_CONFIG, ExitCode.FAILED),
        (KafkaError.MSG_SIZE_TOO_LARGE, ExitCode.FAILED),
    ],
)
def test_exit_codes_of_errors_of_the_library(error: int, code: ExitCode) -> None:
    assert client_failure(from_kafka(KafkaError(error), "Trying"), SERVERS).code is code


def test_a_failure_has_the_page_about_it() -> None:
    error = from_kafka(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), "Sending")
    assert client_failure(error, SERVERS).page == "errors#record-too-large"
