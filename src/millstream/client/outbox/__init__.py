"""The transactional outbox: events written with the application's own data, sent exactly once.

`writer` writes events inside the application's transaction, `schema` and `table` define where they
are kept, `relay` sends them (`millstream outbox relay`).
"""

from millstream.client.outbox.schema import OutboxSchema
from millstream.client.outbox.writer import Outbox

__all__ = ["Outbox", "OutboxSchema"]
