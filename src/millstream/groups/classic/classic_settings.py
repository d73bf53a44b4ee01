"""The settings of classic groups."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.model.sentinel import INT32_MAX


@dataclass(frozen=True, slots=True)
class ClassicGroupSettings:
    """Settings that all classic groups of a broker share."""

    initial_rebalance_delay_ms: int = 3000
    group_size_max: int = INT32_MAX
    #: For the first JoinGroup of a new member: its client may have given up waiting.
    new_member_join_timeout_ms: int = 300_000
    #: The log rejects a larger group record.
    record_bytes_max: int = 900_000
