"""The follower's side of replication: fetchers, their sessions with leaders, and truncation.

Leaves the choice of leaders to `controller`, and appending to `Partition`.
"""
