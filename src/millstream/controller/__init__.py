"""Elections, reassignments and placement of replicas, as pure decisions from the cluster image.

Owns the controller that stores these decisions. Leaves ISR changes to `replication`.
"""
