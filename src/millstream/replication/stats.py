"""Counters of replication since the start, for the metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReplicationStats:
    """Totals of one broker, as leader and as follower."""

    #: Bytes sent to followers, and bytes received from leaders.
    bytes_out: int = 0
    bytes_in: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    #: Proposals that lost against another change, or whose outcome is unknown.
    isr_retries: int = 0
    truncations: int = 0
    #: Connections to leaders that failed or broke, and partitions that could not be fetched.
    connection_failures: int = 0
    partition_failures: int = 0
