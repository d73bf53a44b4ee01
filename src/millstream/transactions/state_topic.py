"""The name of the topic that stores transactional ids."""

from __future__ import annotations

from typing import Final

TRANSACTIONS_TOPIC: Final = "__transaction_state"
