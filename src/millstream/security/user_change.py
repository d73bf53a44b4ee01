"""Changes of users' SCRAM credentials: checked, then applied to the record of a user. Pure.

All changes of one user in a request are applied together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from millstream.metadata.security_record import (
    ScramCredential,
    decode_credentials,
    encode_credentials,
)
from millstream.model.error import BrokerError, ErrorCode
from millstream.security.sasl.exchange import Mechanism
from millstream.security.sasl.scram import ITERATIONS_MAX, ITERATIONS_MIN, credential_of

#: The numbers of the protocol.
MECHANISM_TYPES: Final = {1: Mechanism.SCRAM_SHA_256, 2: Mechanism.SCRAM_SHA_512}
TYPES: Final = {mechanism.value: number for number, mechanism in MECHANISM_TYPES.items()}

_NAME_MAX: Final = 1000
_SALT_BYTES_MAX: Final = 1000


class CredentialChange(NamedTuple):
    """A change of one credential."""

    mechanism: Mechanism
    #: None deletes the credential.
    credential: ScramCredential | None


def mechanism_of(user: str, number: int) -> Mechanism:
    """Return the mechanism that a request names by number. Raises BrokerError."""
    if not user:
        raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if len(user) > _NAME_MAX or not user.isprintable():
        raise BrokerError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"A user name has at most {_NAME_MAX} characters, all of them printable",
        )
    mechanism = MECHANISM_TYPES.get(number)
    if mechanism is None:
        raise BrokerError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return mechanism


def upsertion(
    mechanism: Mechanism, salted_password: bytes, salt: bytes, iterations: int
) -> CredentialChange:
    """Return the change that sets a credential. Raises BrokerError."""
    if iterations < ITERATIONS_MIN:
        raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if iterations > ITERATIONS_MAX:
        raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not salted_password or not salt or len(salt) > _SALT_BYTES_MAX:
        raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The password or the salt is invalid")
    credential = credential_of(mechanism, salted_password, salt, iterations)
    return CredentialChange(mechanism, credential)


def edit_user(changes: Iterable[CredentialChange]) -> Callable[[bytes | None], bytes | None]:
    """Return the edit of a user's record that makes all changes. It raises BrokerError if a
    credential to delete does not exist."""
    wanted = tuple(changes)

    def edit(value: bytes | None) -> bytes | None:
        found = {} if value is None else dict(decode_credentials(value))
        for mechanism, credential in wanted:
            if credential is not None:
                found[mechanism.value] = credential
            elif found.pop(mechanism.value, None) is None:
                raise BrokerError(
                    ErrorCode.RESOURCE_NOT_FOUND,
                    "Attempt to delete a user credential that does not exist",
                )
        return encode_credentials(found) if found else None

    return edit
