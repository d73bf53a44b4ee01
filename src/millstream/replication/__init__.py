"""Partitions on this broker: leadership, in-sync replicas, the high watermark, replication.

Leaves storage to `log`, the cluster's records to `metadata`, and elections to `controller`.
"""
