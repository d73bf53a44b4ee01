"""The parts that every coordinator needs: journal, shards, loading and timers.

The package leaves the state machines of groups and transactional ids to `groups` and
`transactions`.
"""
