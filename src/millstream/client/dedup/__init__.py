"""Consumers that process each message once.

`once` uses the message id and a store of processed ids. `record_once` and `StoredOffsets` use one
database transaction with the application's own writes. The package leaves reading to the consumers.
"""

from millstream.client.dedup.offsets import StaleMessageError, StoredOffsets
from millstream.client.dedup.once import ClaimLostError, InProgressError, Once, message_id, once
from millstream.client.dedup.sql_store import SqlStore, postgres_store, record_once, sqlite_store
from millstream.client.dedup.store import Store, StoreError

__all__ = [
    "ClaimLostError",
    "InProgressError",
    "Once",
    "SqlStore",
    "StaleMessageError",
    "Store",
    "StoreError",
    "StoredOffsets",
    "message_id",
    "once",
    "postgres_store",
    "record_once",
    "sqlite_store",
]
