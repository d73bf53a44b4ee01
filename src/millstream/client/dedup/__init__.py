"""Consumers that process each message once.

`once` by message id, with a store that remembers; `sql_store.record_once` and `offsets` in one
database transaction with the business write.
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
