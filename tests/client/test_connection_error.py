"""Connection errors of librdkafka: which of them mean that a broker has rejected the client."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from millstream.client.connection_error import ConnectionErrors
from millstream.client.error import BrokerError

AUTHENTICATION = KafkaError._AUTHENTICATION


def rejections(error: KafkaError) -> list[BrokerError]:
    errors, found = ConnectionErrors(), []
    errors.on_rejected = found.append
    errors(error)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "SASL authentication error: Authentication failed (after 5ms in state AUTH_REQ)",
        (
            "SASL PLAIN mechanism handshake failed: Broker: Unsupported SASL mechanism: broker's"
            " supported mechanisms: SCRAM-SHA-512"
        ),
    ],
)
def test_wrong_credentials_are_a_rejection(text: str) -> None:
    (error,) = rejections(KafkaError(AUTHENTICATION, text))
    assert "sasl_password" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        (
            "GroupCoordinator: SASL SCRAM-SHA-512 mechanism handshake failed: Local: Broker"
            " transport failure: broker's supported mechanisms: (n/a) (after 0ms in state DOWN)"
        ),
        "SASL authentication error: SaslAuthenticateRequest failed: Local: Timed out",
    ],
)
def test_a_connection_that_is_lost_during_the_login_is_no_rejection(text: str) -> None:
    assert rejections(KafkaError(AUTHENTICATION, text)) == []


def test_other_errors_are_no_rejection() -> None:
    assert rejections(KafkaError(KafkaError._TRANSPORT, "Connect to 127.0.0.1:1 failed")) == []
