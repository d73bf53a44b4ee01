"""Consumer groups: state machines of members, committed offsets, and the group coordinator.

The package leaves persistence, shards and timers to `coordination`, and requests to `broker`.
"""
