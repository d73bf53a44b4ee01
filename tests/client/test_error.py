"""The mapping of librdkafka's errors to the client's exceptions."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from millstream.client.error import (
    BrokerError,
    CommitFailed,
    MillstreamError,
    ProducerFenced,
    TimedOut,
    UsageError,
    from_kafka,
    is_missing,
    is_of_batch,
    is_of_topic,
    is_rejection,
    is_retriable,
    is_unreachable,
    settings_error,
    translated,
)


@pytest.mark.parametrize(
    ("code", "kind", "expected"),
    [
        (KafkaError.UNKNOWN_MEMBER_ID, BrokerError, BrokerError),
        (KafkaError.UNKNOWN_MEMBER_ID, CommitFailed, CommitFailed),
        (KafkaError._TIMED_OUT, BrokerError, TimedOut),
        # A caller that asks for a kind gets it, also after a timeout.
        (KafkaError.REQUEST_TIMED_OUT, CommitFailed, CommitFailed),
        (KafkaError.INVALID_PRODUCER_EPOCH, CommitFailed, ProducerFenced),
    ],
)
def test_a_code_becomes_an_exception(
    code: int, kind: type[BrokerError], expected: type[MillstreamError]
) -> None:
    error = from_kafka(KafkaError(code, "why"), "Committing", kind)
    assert type(error) is expected
    assert str(error).startswith("Committing: why (")
    if isinstance(error, BrokerError):
        assert error.code == code


def test_translated_raises_with_the_cause() -> None:
    with pytest.raises(BrokerError, match="Doing this: why") as raised, translated("Doing this"):
        raise KafkaException(KafkaError(KafkaError.NOT_COORDINATOR, "why."))
    assert isinstance(raised.value.__cause__, KafkaException)


def test_wrong_settings_are_a_usage_error() -> None:
    error = settings_error(KafkaException(KafkaError(KafkaError._INVALID_ARG, "no")), "producer")
    assert isinstance(error, UsageError)
    assert str(error).startswith("The producer's settings are wrong: no. Change the option or ")


def test_codes_are_classified() -> None:
    assert is_rejection(KafkaError.MSG_SIZE_TOO_LARGE)
    assert is_of_batch(KafkaError.MSG_SIZE_TOO_LARGE)
    assert not is_of_batch(KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert is_of_topic(KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert is_missing(KafkaError._UNKNOWN_PARTITION)
    assert is_unreachable(KafkaError._ALL_BROKERS_DOWN)
    assert not is_rejection(KafkaError.TOPIC_AUTHORIZATION_FAILED)


def test_fatal_and_abortable_errors_are_not_retriable() -> None:
    code = KafkaError._TIMED_OUT
    assert is_retriable(KafkaError(code, "late"))
    assert not is_retriable(KafkaError(code, "late", fatal=True))
    assert not is_retriable(KafkaError(code, "late", txn_requires_abort=True))
