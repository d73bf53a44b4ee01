"""Where groups live: the topic whose partitions hold them (see `coordination.placement`)."""

from __future__ import annotations

from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"
