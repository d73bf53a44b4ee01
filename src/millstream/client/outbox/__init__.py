"""The transactional outbox: events written with the application's own data, sent exactly once.

`writer` writes events inside the application's transaction, `schema` and `table` define the tables,
and `relay` sends the events (`millstream outbox relay`). The package leaves the application's
transaction to the application.
"""

from millstream.client.outbox.schema import OutboxSchema
from millstream.client.outbox.writer import Outbox

__all__ = ["Outbox", "OutboxSchema"]
