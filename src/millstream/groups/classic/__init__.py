"""The classic group protocol: members join, the leader assigns, and SyncGroup distributes.

The package leaves offsets to `groups.offset` and consumer groups (KIP-848) to `groups.consumer`.
"""
