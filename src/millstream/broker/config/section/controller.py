"""Settings for the controller: leader balance and decommissioned brokers."""

from __future__ import annotations

import dataclasses

from millstream.model.definition import ConfigScope, ConfigType, setting


def _check_broker_ids(values: tuple[str, ...]) -> None:
    if not all(value.isascii() and value.isdigit() for value in values):
        raise ValueError("numbers of brokers")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSection:
    """The controller. `config.controller`."""

    auto_leader_rebalance_enable: bool = setting(
        ConfigType.BOOLEAN, True, "Move leadership back to the preferred leaders."
    )
    leader_imbalance_check_interval_seconds: int = setting(
        ConfigType.LONG,
        300,
        "Seconds between the controller's checks of the leader balance.",
        minimum=1,
    )
    leader_imbalance_per_broker_percentage: int = setting(
        ConfigType.INT,
        10,
        "Percentage of a broker's preferred partitions that other brokers may lead.",
        minimum=0,
        maximum=100,
    )
    decommissioned_brokers: tuple[str, ...] = setting(
        ConfigType.LIST,
        (),
        "Brokers that hold no replicas: the controller moves their replicas away. Set at run time,"
        " for all brokers; see `millstream broker decommission`.",
        check=_check_broker_ids,
        scope=ConfigScope.CLUSTER_WIDE,
    )
