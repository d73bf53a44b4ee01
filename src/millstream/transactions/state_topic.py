"""Where transactional ids live: the topic whose partitions hold them (`coordination.placement`)."""

from __future__ import annotations

from typing import Final

TRANSACTIONS_TOPIC: Final = "__transaction_state"
