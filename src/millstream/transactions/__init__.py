"""Transactions: the state machine of a transactional id, the coordinator, and markers.

The package leaves persistence and timers to `coordination`, and the transport of markers and
producer id allocation to `broker`.
"""
