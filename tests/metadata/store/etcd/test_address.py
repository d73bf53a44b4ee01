"""Parsing of etcd addresses: valid forms, and the message for each invalid form."""

from __future__ import annotations

import pytest

from millstream.metadata.store.etcd.address import ENDPOINTS_MAX, EtcdAddress, parse_etcd_address


@pytest.mark.parametrize(
    ("text", "urls", "root"),
    [
        ("etcd://h", ["http://h:2379"], "/millstream/"),
        ("etcd://h:1/", ["http://h:1"], "/millstream/"),
        ("etcd://a:1,b:2/x", ["http://a:1", "http://b:2"], "/x/"),
        ("etcds://a.b-c:1, d_e:2/x/y.z/", ["https://a.b-c:1", "https://d_e:2"], "/x/y.z/"),
        ("etcd://[::1]:1,10.0.0.1/p", ["http://[::1]:1", "http://10.0.0.1:2379"], "/p/"),
    ],
)
def test_valid_addresses(text: str, urls: list[str], root: str) -> None:
    assert parse_etcd_address(text) == EtcdAddress(tuple(urls), root)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h:1", "etcd://host:port"),
        ("http://h:1", "etcd://host:port"),
        ("etcd://", "members as host:port"),
        ("etcd://a:1,", "members as host:port"),
        ("etcd://a:0", "members as host:port"),
        ("etcd://a:65536", "members as host:port"),
        ("etcd://a:x", "members as host:port"),
        ("etcd://::1:2379", "members as host:port"),
        ("etcd://a:1,a:1", "different addresses"),
        ("etcd://user:secret@a:1", "metadata.etcd.password.file"),
        ("etcd://a:1/x//y", "a prefix of"),
        ("etcd://a:1/x?y", "a prefix of"),
        ("etcd://" + ",".join(f"h{n}" for n in range(ENDPOINTS_MAX + 1)), "at most"),
    ],
)
def test_invalid_addresses_are_rejected(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as raised:
        parse_etcd_address(text)
    assert "secret" not in str(raised.value)


def test_the_text_form_has_no_scheme() -> None:
    assert str(parse_etcd_address("etcds://a:1,b/x")) == "a:1, b:2379"
    assert parse_etcd_address("etcds://a").uses_tls
