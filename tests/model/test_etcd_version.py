from __future__ import annotations

import pytest

from millstream.model.etcd_version import is_safe_etcd


@pytest.mark.parametrize(
    ("version", "is_safe"),
    [
        ("3.3.27", False),
        ("3.4.21", False),
        ("3.4.22", True),
        ("3.5.0", False),
        ("3.5.5", False),
        ("3.5.6", True),
        ("3.6.0-rc.1", True),
        ("4.0.0", True),
    ],
)
def test_versions(version: str, is_safe: bool) -> None:
    assert is_safe_etcd(version) is is_safe


def test_a_malformed_version() -> None:
    with pytest.raises(ValueError, match="malformed version: 'new'"):
        is_safe_etcd("new")
