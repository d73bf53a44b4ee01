"""Owns what a log knows of its producers: sequences, epochs, snapshots and transactions.

Leaves the decision to commit or abort a transaction to the transaction coordinator.
"""
