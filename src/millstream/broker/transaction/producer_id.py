"""Producer ids: assigned one by one from blocks that are reserved durably."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from millstream.metadata.catalog import Catalog


class ProducerIds:
    """Assigns producer ids, each once. Unused ids of a block are lost when the broker stops."""

    __slots__ = ("_block", "_catalog", "_lock")

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._block: Iterator[int] = iter(())
        #: Held while a block is reserved, so that concurrent callers share one block.
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """Return an unused id."""
        async with self._lock:
            producer_id = next(self._block, None)
            if producer_id is None:
                self._block = iter(await self._catalog.allocate_producer_ids())
                producer_id = next(self._block)
            return producer_id
