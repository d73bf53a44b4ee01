"""Transactions: the state machine of a transactional id, its coordinator, its markers."""
