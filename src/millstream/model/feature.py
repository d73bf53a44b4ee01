"""The cluster's features: their names, their levels, and the allowed changes of levels.

A feature's level selects behaviour that clients must agree on. Each level has the same effect as in
Kafka:

    group.version        0 only the classic group protocol, 1 the consumer protocol as well
    transaction.version  0 and 1 the classic transaction protocol (with 1 the coordinator's records
                         may carry tagged fields), 2 raises the epoch at every end (KIP-890)

Kafka's other features control formats and functions that do not exist here, so they have no
level: `metadata.version` and `kraft.version` (metadata is in SQLite or etcd), `share.version`,
`streams.version`. Eligible leader replicas (`eligible.leader.replicas.version`) can't be switched
off, so they have no level either. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from millstream.model.error import BrokerError, ErrorCode


class Feature(NamedTuple):
    """One feature. Levels from 0, which is off, to `level_max` are supported."""

    name: str
    level_max: int


class UpgradeType(IntEnum):
    """The allowed direction of a change; the numbers are those of UpdateFeatures."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


GROUP_VERSION: Final = Feature("group.version", 1)
TRANSACTION_VERSION: Final = Feature("transaction.version", 2)
#: Every feature by name.
FEATURES: Final[Mapping[str, Feature]] = {
    feature.name: feature for feature in (GROUP_VERSION, TRANSACTION_VERSION)
}


class FeatureUpdate(NamedTuple):
    """A requested level. `upgrade_type` is not validated yet."""

    name: str
    level: int
    upgrade_type: int


def updated(levels: Mapping[str, int], updates: list[FeatureUpdate]) -> dict[str, int]:
    """Return `levels` after all updates; INVALID_UPDATE_VERSION if one of them is not allowed.

    `levels` has the present level of every feature. Downgrades lose nothing here, so safe and
    unsafe downgrades are the same."""
    after = dict(levels)
    for update in updates:
        reason = _objection(after, update)
        if reason is not None:
            raise BrokerError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"no feature was changed, because {update.name[:249]} can't be set to"
                f" {update.level}: {reason}",
            )
        after[update.name] = update.level
    return after


def _objection(levels: Mapping[str, int], update: FeatureUpdate) -> str | None:
    feature = FEATURES.get(update.name)
    if update.upgrade_type not in tuple(UpgradeType):
        return f"there is no upgrade type {update.upgrade_type}"
    if feature is None:
        return f"the features of this cluster are {', '.join(FEATURES)}"
    if not 0 <= update.level <= feature.level_max:
        return f"the levels 0 to {feature.level_max} are supported"
    present = levels[update.name]
    if update.level < present and update.upgrade_type == UpgradeType.UPGRADE:
        return f"that is a downgrade from {present}, and an upgrade was requested"
    if update.level > present and update.upgrade_type != UpgradeType.UPGRADE:
        return f"that is an upgrade from {present}, and a downgrade was requested"
    return None
