"""Owns the log of each partition: segments, appending, recovery, retention and upkeep.

Leaves replication, the high watermark and the decision who may append to `replication`.
"""
