"""Consumer groups: their state machines, committed offsets, and the coordinator that keeps them."""
