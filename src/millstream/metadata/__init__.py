"""The cluster's metadata: its records, the image that each broker has, and changes to them.

Leaves elections to `controller`, ISR decisions to `replication`, and storage to `store/`.
"""
