"""Credentials from the cluster's metadata."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from millstream.metadata.image import EMPTY_IMAGE
from millstream.metadata.security_record import ScramCredential, TokenRecord
from millstream.model.map import Map
from millstream.security.credential_store import CredentialStore
from millstream.security.sasl.exchange import SCRAM_MECHANISMS, Mechanism

CREDENTIAL = ScramCredential(b"salt", b"stored", b"server", 8192)
TOKEN = TokenRecord(
    token_id="t", owner="User:alice", requester="User:alice", issued_ms=0, expiry_ms=500,
    expiry_ms_max=900,
)  # fmt: skip
IMAGE = replace(
    EMPTY_IMAGE,
    users=Map({"alice": Map({"SCRAM-SHA-256": CREDENTIAL})}),
    tokens=Map({"t": TOKEN}),
)


def store(now_ms: int = 100, token_secret: str | None = "key") -> CredentialStore:
    return CredentialStore(
        lambda: IMAGE, lambda: now_ms, fake_secret=b"f", token_secret=token_secret
    )


def test_a_user_has_the_credential_of_a_mechanism() -> None:
    found = store().user(Mechanism.SCRAM_SHA_256, "alice")
    assert found.credential == CREDENTIAL
    assert found.identity is not None
    assert str(found.identity.principal) == "User:alice"
    assert store().user(Mechanism.SCRAM_SHA_512, "alice").identity is None
    assert store().user(Mechanism.SCRAM_SHA_256, "bob").identity is None


def test_unknown_users_look_like_the_users_that_exist() -> None:
    """Three of four users were made by one tool, the fourth by another one."""
    mechanism = Mechanism.SCRAM_SHA_256

    def store_of(*credentials: ScramCredential) -> CredentialStore:
        users = {f"u{number}": Map({mechanism: each}) for number, each in enumerate(credentials)}
        image = replace(EMPTY_IMAGE, users=Map(users))
        return CredentialStore(lambda: image, lambda: 0, fake_secret=b"f")

    text = ScramCredential(b"1a2b3c", b"stored", b"server", 4096)
    other = ScramCredential(bytes(range(64)), b"stored", b"server", 10_000)
    found = store_of(text, other, text, text)
    fakes = [found.user(mechanism, f"nobody-{number}").credential for number in range(400)]
    assert {(each.iterations, len(each.salt) == 64) for each in fakes} == {
        (4096, False), (10_000, True),
    }  # fmt: skip
    assert 60 < sum(each.iterations == 10_000 for each in fakes) < 140
    assert len({each.salt for each in fakes}) == 400
    # The order of the users does not matter: brokers hold them in different orders.
    again = store_of(other, text, text, text)
    assert fakes == [again.user(mechanism, f"nobody-{number}").credential for number in range(400)]
    # Without users, the defaults.
    assert store_of().user(mechanism, "nobody").credential.iterations == 4096


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_an_unknown_token_looks_like_one_that_exists(mechanism: Mechanism) -> None:
    known, unknown = (store().token(mechanism, name).credential for name in ("t", "u"))
    assert (known.iterations, len(known.salt)) == (unknown.iterations, len(unknown.salt))


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_a_token_logs_in_its_owner_until_it_expires(mechanism: Mechanism) -> None:
    identity = store().token(mechanism, "t").identity
    assert identity is not None
    assert (str(identity.principal), identity.expires_ms, identity.is_token) == (
        "User:alice", 500, True,
    )  # fmt: skip
    assert store(now_ms=500).token(mechanism, "t").identity is None
    assert store().token(mechanism, "u").identity is None
    assert store(token_secret=None).token(mechanism, "t").identity is None
    grouped = replace(IMAGE, tokens=Map({"t": msgspec.structs.replace(TOKEN, groups=("g",))}))
    of_group = CredentialStore(lambda: grouped, lambda: 100, token_secret="key")
    identity = of_group.token(mechanism, "t").identity
    assert identity is not None
    assert identity.groups == ("g",)
    # All brokers derive the same credential.
    assert store().token(mechanism, "t") == store().token(mechanism, "t")
