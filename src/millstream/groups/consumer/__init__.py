"""Consumer groups (KIP-848): server-side assignment, reconciliation, and protocol migration.

The package leaves classic groups to `groups.classic` and topic patterns to `groups.subscription`.
"""
