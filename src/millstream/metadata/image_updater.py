"""Keeps a `ClusterImage` up to date with the metadata store.

Owns the current image, the task that watches the store, and the subscribers to changes. Changes
nothing in the store; `catalog` does.

Everything runs on one event loop. Subscribers are called in order of subscription, synchronously,
with the new image.

If the watch fails for good, or a subscriber raises, the image is stale, and some subscribers have
seen changes that others have not. The watch is then not restarted: every wait ends with an error,
`failed` is resolved, and the broker shuts down (`Policy.STOP`).
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from itertools import count
from typing import Final, TypeAlias

from millstream.env.supervisor import Policy, SupervisedTask, Supervisor
from millstream.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta, apply, difference
from millstream.metadata.store.port import (
    CompactedError,
    MetadataStore,
    MetadataStoreError,
    UnavailableError,
    WatchEvent,
)

_logger = logging.getLogger(__name__)

_RELOAD_PAUSE_S: Final = 0.5

Subscriber: TypeAlias = Callable[[ClusterImage, ImageDelta], None]


class ImageUpdater:
    """Holds the image: `load` reads it, and it is kept up to date between `start` and `close`."""

    __slots__ = ("_order", "_subscribers", "_task", "_waiters", "failed", "image", "store")

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.image: ClusterImage = EMPTY_IMAGE
        #: Resolved with the error once the image is no longer kept up to date.
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._subscribers: list[Subscriber] = []
        self._task: SupervisedTask | None = None
        #: Waits for a revision of the image: a heap of (revision, order, future).
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()

    async def load(self) -> None:
        """Read the whole store into the image."""
        found = await self.store.range("")
        events = (WatchEvent(item.key, item.value, item.revision) for item in found.items)
        loaded, delta = apply(EMPTY_IMAGE, events, found.revision)
        if self.image is not EMPTY_IMAGE:
            delta = difference(self.image, loaded)
        self._advance(loaded, delta)

    def start(self, supervisor: Supervisor) -> None:
        self._task = supervisor.start(
            "metadata-follower", self._watch_forever, policy=Policy.STOP, on_failure=self._fail
        )

    async def close(self) -> None:
        """Stop the watch. Every wait ends with a MetadataStoreError."""
        if self._task is not None:
            await self._task.stop()
        self._fail(MetadataStoreError("the catalog is closed"))

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` on every change; the result unsubscribes it."""
        self._subscribers.append(subscriber)
        return partial(self._subscribers.remove, subscriber)

    async def reached(self, revision: int) -> None:
        """Return once `image` has this revision; MetadataStoreError if it never will."""
        if self.image.revision >= revision:
            return
        self.check_following()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (revision, next(self._order), waiter))
        await waiter

    def check_following(self) -> None:
        """Raise MetadataStoreError once the image is no longer kept up to date."""
        if self.failed.done():
            raise MetadataStoreError(
                f"metadata is no longer kept up to date: {self.failed.result()}"
            )

    async def _watch_forever(self) -> None:
        while True:
            try:
                await self._watch()
            except CompactedError as error:
                _logger.warning("loading all metadata again: %s", error)
                await self._reload()

    async def _reload(self) -> None:
        while True:
            try:
                return await self.load()
            except UnavailableError as error:
                _logger.warning("metadata can't be loaded yet: %s", error)
                await asyncio.sleep(_RELOAD_PAUSE_S)

    async def _watch(self) -> None:
        async with aclosing(self.store.watch("", self.image.revision + 1)) as changes:
            async for found in changes:
                self._advance(*apply(self.image, found.events, found.revision))

    def _advance(self, image: ClusterImage, delta: ImageDelta) -> None:
        self.image = image
        if delta:
            for subscriber in list(self._subscribers):
                subscriber(image, delta)
        while self._waiters and self._waiters[0][0] <= image.revision:
            waiter = heapq.heappop(self._waiters)[2]
            if not waiter.done():
                waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self.failed.done():
            self.failed.set_result(error)
        waiters, self._waiters = self._waiters, []
        for _, _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(
                    MetadataStoreError(f"metadata is no longer kept up to date: {error}")
                )
