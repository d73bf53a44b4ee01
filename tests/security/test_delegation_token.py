"""The rules of delegation tokens."""

from __future__ import annotations

import msgspec
import pytest

from millstream.metadata.security_record import TokenRecord, decode_token, encode_token
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.principal import Principal
from millstream.security.credential_store import token_hmac
from millstream.security.delegation_token import (
    TokenLimits,
    create_token,
    expire_token,
    find_token,
    renew_token,
    visible_tokens,
)

ALICE, BOB, EVE = (Principal("User", name) for name in ("alice", "bob", "eve"))
LIMITS = TokenLimits(lifetime_ms_max=1000, renewal_ms_max=100)
SECRET = "key of the brokers"


def token(lifetime_ms: int = -1, token_id: str = "t") -> TokenRecord:
    return create_token(token_id, ALICE, ALICE, [BOB], lifetime_ms, LIMITS, now_ms=5000)


@pytest.mark.parametrize(
    ("lifetime_ms", "expiry_ms", "expiry_ms_max"),
    [(-1, 5100, 6000), (0, 5100, 6000), (500, 5100, 5500), (50, 5050, 5050), (9999, 5100, 6000)],
)
def test_lifetimes(lifetime_ms: int, expiry_ms: int, expiry_ms_max: int) -> None:
    made = token(lifetime_ms)
    assert (made.issued_ms, made.expiry_ms, made.expiry_ms_max) == (5000, expiry_ms, expiry_ms_max)
    assert (made.owner, made.requester, made.renewers) == (
        "User:alice",
        "User:alice",
        ("User:bob",),
    )


def test_a_token_keeps_the_groups_of_its_owner() -> None:
    made = create_token("t", ALICE, ALICE, [], -1, LIMITS, 0, ("contractors",))
    assert made.groups == ("contractors",)
    assert decode_token(encode_token(made)) == made


def test_only_users_have_tokens() -> None:
    with pytest.raises(BrokerError) as caught:
        create_token("t", ALICE, ALICE, [Principal("Group", "g")], -1, LIMITS, 0)
    assert caught.value.code is ErrorCode.INVALID_PRINCIPAL_TYPE


@pytest.mark.parametrize("who", [ALICE, BOB])
def test_owner_and_renewers_renew_up_to_the_maximum(who: Principal) -> None:
    made = token(150)
    assert renew_token(made, who, -1, LIMITS, 5020).expiry_ms == 5120
    assert renew_token(made, who, 10, LIMITS, 5020).expiry_ms == 5030
    assert renew_token(made, who, -1, LIMITS, 5090).expiry_ms == 5150


def test_expiry() -> None:
    made = token()
    assert expire_token(made, BOB, -1, 5001) is None
    later = expire_token(made, BOB, 10, 5001)
    assert later is not None
    assert later.expiry_ms == 5011


def test_others_may_do_nothing_and_expired_tokens_stay_expired() -> None:
    made = token()
    with pytest.raises(BrokerError) as caught:
        renew_token(made, EVE, -1, LIMITS, 5001)
    assert caught.value.code is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    with pytest.raises(BrokerError) as caught:
        renew_token(made, ALICE, -1, LIMITS, 5100)
    assert caught.value.code is ErrorCode.DELEGATION_TOKEN_EXPIRED
    with pytest.raises(BrokerError) as caught:
        expire_token(made, ALICE, 10, 5100)
    assert caught.value.code is ErrorCode.DELEGATION_TOKEN_EXPIRED
    for period_ms in (-1, 10):
        with pytest.raises(BrokerError) as caught:
            expire_token(made, EVE, period_ms, 5100)
        assert caught.value.code is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


def test_an_expired_token_can_be_ended() -> None:
    assert expire_token(token(), ALICE, -1, 5100) is None


def test_tokens_are_found_by_their_hmac() -> None:
    made = [token(token_id="a"), token(token_id="b")]
    assert find_token(made, SECRET, token_hmac(SECRET, "b")) == made[1]
    with pytest.raises(BrokerError) as caught:
        find_token(made, SECRET, token_hmac("another key", "b"))
    assert caught.value.code is ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_clients_see_their_own_tokens() -> None:
    of_alice = token()
    of_eve = msgspec.structs.replace(
        of_alice, token_id="e", owner="User:eve", requester="User:eve", renewers=()
    )
    both = [of_alice, of_eve]

    def hidden(_: TokenRecord) -> bool:
        return False

    assert list(visible_tokens(both, ALICE, None, 5001, hidden)) == [of_alice]
    assert list(visible_tokens(both, BOB, None, 5001, hidden)) == [of_alice]
    assert list(visible_tokens(both, ALICE, [EVE], 5001, hidden)) == []
    assert list(visible_tokens(both, EVE, [EVE], 5001, hidden)) == [of_eve]
    assert list(visible_tokens(both, ALICE, None, 5100, hidden)) == []
    assert list(visible_tokens(both, ALICE, None, 5001, lambda _: True)) == both


def test_the_requester_sees_a_token_and_may_not_change_it() -> None:
    made = msgspec.structs.replace(token(), requester="User:eve")
    assert list(visible_tokens([made], EVE, None, 5001, lambda _: False)) == [made]
    assert list(visible_tokens([made], EVE, [EVE], 5001, lambda _: False)) == [made]
    with pytest.raises(BrokerError) as caught:
        renew_token(made, EVE, -1, LIMITS, 5001)
    assert caught.value.code is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
