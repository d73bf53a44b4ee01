from __future__ import annotations

import pytest

from millstream.cli.support.topic_config import Retention, retention_of
from millstream.client import ConfigEntry, ConfigSource


@pytest.mark.parametrize(
    ("policy", "ms", "size", "expected"),
    [
        ("delete", "1000", "-1", Retention(1000, None)),
        ("delete", "-1", "5000", Retention(None, 5000)),
        ("delete", "0", "0", Retention(0, 0)),
        ("compact,delete", "1000", "5000", Retention(1000, 5000)),
        ("compact", "1000", "5000", Retention()),
        ("", "1000", "5000", Retention()),
    ],
)
def test_retention(policy: str, ms: str, size: str, expected: Retention) -> None:
    values = {"cleanup.policy": policy, "retention.ms": ms, "retention.bytes": size}
    configs = {
        name: ConfigEntry(name=name, value=value, source=ConfigSource.TOPIC)
        for name, value in values.items()
    }
    assert retention_of(configs) == expected
