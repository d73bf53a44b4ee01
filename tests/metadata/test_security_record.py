"""Users, ACLs, quotas and tokens in the store and in the image."""

from __future__ import annotations

import pytest

from millstream.metadata import security_record as records
from millstream.metadata.image import EMPTY_IMAGE, apply, difference
from millstream.metadata.security_record import (
    AclEntry,
    AclResource,
    QuotaEntity,
    ScramCredential,
    TokenRecord,
)
from millstream.metadata.store.port import WatchEvent
from millstream.model.map import Map

CREDENTIAL = ScramCredential(b"\x00salt", b"stored", b"server", 4096)
RESOURCE = AclResource(2, 4, "orders/eu.")
ENTRY = AclEntry("User:alice", "*", 3, 3)
TOKEN = TokenRecord(
    token_id="id",
    owner="User:alice",
    requester="User:bob",
    renewers=("User:carol",),
    issued_ms=1,
    expiry_ms=2,
    expiry_ms_max=3,
)


@pytest.mark.parametrize(
    "entity",
    [
        (("user", "alice"),),
        (("client-id", "a/b=c"), ("user", None)),
        (("client-id", None),),
        (("ip", "::1"),),
        (("user", ""),),
    ],
)
def test_the_key_of_an_entity_names_it(entity: QuotaEntity) -> None:
    assert records.parse_quota_key(records.quota_key(entity)) == entity


@pytest.mark.parametrize("name", ["orders", "a/b/c", "", "*"])
def test_the_key_of_a_resource_names_it(name: str) -> None:
    resource = AclResource(3, 3, name)
    assert records.parse_acl_key(records.acl_key(resource)) == resource


def test_the_image_follows_the_store() -> None:
    entity: QuotaEntity = (("user", None),)
    puts = {
        records.user_key("alice"): records.encode_credentials({"SCRAM-SHA-256": CREDENTIAL}),
        records.acl_key(RESOURCE): records.encode_acls([ENTRY]),
        records.quota_key(entity): records.encode_quotas({"producer_byte_rate": 1024.0}),
        records.token_key("id"): records.encode_token(TOKEN),
    }
    image, delta = apply(
        EMPTY_IMAGE, [WatchEvent(key, value, 1) for key, value in puts.items()], revision=1
    )
    assert image.users == Map({"alice": Map({"SCRAM-SHA-256": CREDENTIAL})})
    assert image.acls == Map({RESOURCE: (ENTRY,)})
    assert image.quotas == Map({entity: Map({"producer_byte_rate": 1024.0})})
    assert image.tokens == Map({"id": TOKEN})
    found = (delta.users, delta.acls, delta.quotas, delta.tokens)
    assert found == ({"alice"}, {RESOURCE}, {entity}, {"id"})
    assert difference(EMPTY_IMAGE, image) == delta

    empty, delta = apply(image, [WatchEvent(key, None, 2) for key in puts], revision=2)
    assert (len(empty.users), len(empty.acls), len(empty.quotas), len(empty.tokens)) == (0, 0, 0, 0)
    assert delta
