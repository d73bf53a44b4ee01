"""Totals of replication since the start, for the metrics. Plain numbers to add to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReplicationStats:
    #: Sent to followers, received from leaders.
    bytes_out: int = 0
    bytes_in: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    #: Proposals that somebody else's change overtook, or whose outcome is not known.
    isr_retries: int = 0
    truncations: int = 0
    #: Connections to leaders that failed or broke, and partitions that could not be fetched.
    connection_failures: int = 0
    partition_failures: int = 0
