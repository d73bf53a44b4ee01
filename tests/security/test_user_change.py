"""Changes of users' credentials."""

from __future__ import annotations

import pytest

from millstream.metadata.security_record import decode_credentials
from millstream.model.error import BrokerError, ErrorCode
from millstream.security.sasl.exchange import Mechanism
from millstream.security.user_change import CredentialChange, edit_user, mechanism_of, upsertion

SHA_256, SHA_512 = Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512


def test_changes_of_one_user_are_made_together() -> None:
    added = [upsertion(each, b"salted", b"salt", 4096) for each in (SHA_256, SHA_512)]
    value = edit_user(added)(None)
    assert value is not None
    assert set(decode_credentials(value)) == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
    rest = edit_user([CredentialChange(SHA_256, None)])(value)
    assert rest is not None
    assert set(decode_credentials(rest)) == {"SCRAM-SHA-512"}
    assert edit_user([CredentialChange(SHA_512, None)])(rest) is None
    with pytest.raises(BrokerError) as caught:
        edit_user([CredentialChange(SHA_256, None)])(rest)
    assert caught.value.code is ErrorCode.RESOURCE_NOT_FOUND


@pytest.mark.parametrize(
    ("salt", "iterations"), [(b"s", 4095), (b"s", 16_385), (b"", 4096), (b"s" * 1001, 4096)]
)
def test_unacceptable_credentials(salt: bytes, iterations: int) -> None:
    with pytest.raises(BrokerError) as caught:
        upsertion(SHA_256, b"salted", salt, iterations)
    assert caught.value.code is ErrorCode.UNACCEPTABLE_CREDENTIAL


@pytest.mark.parametrize(
    ("user", "number", "code"),
    [
        ("", 1, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("a\nb", 1, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("a" * 1001, 1, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("a", 0, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ("a", 3, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
def test_names_and_mechanisms(user: str, number: int, code: ErrorCode) -> None:
    with pytest.raises(BrokerError) as caught:
        mechanism_of(user, number)
    assert caught.value.code is code
    assert mechanism_of("zoë", 2) is SHA_512
