"""Feature levels: allowed changes, and changes that are all made or none."""

from __future__ import annotations

import pytest

from millstream.model.error import BrokerError, ErrorCode
from millstream.model.feature import FeatureUpdate, UpgradeType, updated

UPGRADE, SAFE, UNSAFE = (
    UpgradeType.UPGRADE,
    UpgradeType.SAFE_DOWNGRADE,
    UpgradeType.UNSAFE_DOWNGRADE,
)
LEVELS = {"group.version": 1, "transaction.version": 1}


@pytest.mark.parametrize(
    ("update", "level"),
    [
        (FeatureUpdate("transaction.version", 2, UPGRADE), 2),
        (FeatureUpdate("transaction.version", 1, UPGRADE), 1),
        (FeatureUpdate("transaction.version", 1, SAFE), 1),
        (FeatureUpdate("transaction.version", 0, SAFE), 0),
        (FeatureUpdate("transaction.version", 0, UNSAFE), 0),
    ],
)
def test_allowed_changes(update: FeatureUpdate, level: int) -> None:
    assert updated(LEVELS, [update]) == {"group.version": 1, "transaction.version": level}
    assert LEVELS["transaction.version"] == 1


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (FeatureUpdate("transaction.version", 0, UPGRADE), "a downgrade from 1"),
        (FeatureUpdate("transaction.version", 2, SAFE), "an upgrade from 1"),
        (FeatureUpdate("transaction.version", 2, UNSAFE), "an upgrade from 1"),
        (FeatureUpdate("transaction.version", 3, UPGRADE), "levels 0 to 2"),
        (FeatureUpdate("transaction.version", -1, SAFE), "levels 0 to 2"),
        (FeatureUpdate("metadata.version", 30, UPGRADE), "group.version, transaction.version"),
        (FeatureUpdate("transaction.version", 2, 0), "no upgrade type 0"),
        (FeatureUpdate("transaction.version", 2, 4), "no upgrade type 4"),
    ],
)
def test_rejected_changes(update: FeatureUpdate, reason: str) -> None:
    good = FeatureUpdate("group.version", 0, SAFE)
    with pytest.raises(BrokerError, match=reason) as raised:
        updated(LEVELS, [good, update])
    assert raised.value.code is ErrorCode.INVALID_UPDATE_VERSION
