"""The `millstream txn` commands: list, describe and abort transactions.

It owns the requests to coordinators and leaders; `protocol` owns the connections.
"""
