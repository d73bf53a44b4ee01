"""One watch of etcd: yields every change once, in order, across failures of members.

Owns the position of the watch, and reconnects from there. A watch covers all keys of the cluster
and selects those with its prefix, so that it knows every revision that it could have missed.

Silence: a member that is stopped or isolated looks like an idle member. After `IDLE_S` without a
line the watch requests the store's revision over another connection. If the revision is ahead of
the watch, the watch makes a change (`Nudge`). If the change does not arrive within `SILENCE_S`, the
watch reconnects to another member.

Compaction: the watch starts at the last known revision, not at the one after it. An etcd that has
compacted more than that rejects the watch. Otherwise some versions would omit a compacted deletion.
Known events are dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Final, Protocol

from millstream.metadata.store.etcd import gateway_message as message
from millstream.metadata.store.etcd.gateway import EtcdError, EtcdGateway
from millstream.metadata.store.etcd.stream import EtcdStream
from millstream.metadata.store.port import (
    CompactedError,
    MetadataStoreError,
    UnavailableError,
    WatchEvent,
    WatchEvents,
)

_logger = logging.getLogger(__name__)

IDLE_S: Final = 2.0
SILENCE_S: Final = 2.0
_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 2.0


class Nudge(Protocol):
    """The calls by which a watch detects that it misses changes."""

    async def revision(self) -> int:
        """Return the store's present revision."""
        ...

    async def nudge(self) -> int:
        """Change a key that no watch shows; return the revision of the change."""
        ...


class EtcdWatch:
    """Changes under `root` after the revision `position`, of keys with `prefix`."""

    __slots__ = ("_expected", "_gateway", "_nudge", "_prefix", "_progress_key", "_root", "position")

    def __init__(
        self,
        gateway: EtcdGateway,
        nudge: Nudge,
        root: str,
        prefix: str,
        progress_key: str,
        position: int,
    ) -> None:
        self._gateway = gateway
        self._nudge = nudge
        self._root = root.encode()
        self._prefix = prefix
        self._progress_key = progress_key
        #: All changes up to this revision were yielded.
        self.position = position
        #: Revision of a nudge that the member must report; 0 if there is none.
        self._expected = 0

    async def changes(self) -> AsyncGenerator[WatchEvents, None]:
        """Yield changes without an end; CompactedError if etcd has compacted unseen changes."""
        pause = _PAUSE_S_MIN
        while True:
            try:
                async with self._gateway.stream("/v3/watch", self._request()) as stream:
                    self._expected = 0
                    while (line := await self._next_line(stream)) is not None:
                        found = self._parse_line(line)
                        if found is not None:
                            pause = _PAUSE_S_MIN
                            yield found
                    self._gateway.switch_member()
            except (UnavailableError, EtcdError) as error:
                self._gateway.check_open()
                # Operators can fix credentials and permissions while the broker runs, so such
                # errors are retried too.
                level = logging.WARNING if pause == _PAUSE_S_MIN else logging.DEBUG
                _logger.log(level, "the watch of etcd reconnects: %s", error)
                self._gateway.switch_member()
                self._gateway.forget_login(str(error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_S_MAX)

    def _request(self) -> bytes:
        start = max(1, self.position)
        return message.watch_request(self._root, message.after_prefix(self._root), start)

    async def _next_line(self, stream: EtcdStream) -> bytes | None:
        """Return the next line; None if the member does not report the nudge in time."""
        while True:
            line = await stream.line(SILENCE_S if self._expected else IDLE_S)
            if line is not None:
                return line
            if self._expected > self.position:
                _logger.warning("etcd sends nothing on a watch; the watch moves to another member")
                return None
            self._expected = 0
            if await self._nudge.revision() > self.position:
                self._expected = await self._nudge.nudge()

    def _parse_line(self, line: bytes) -> WatchEvents | None:
        try:
            found = message.decode(line, message.WatchLine)
        except ValueError as error:
            raise UnavailableError(f"malformed line of a watch: {error}") from error
        if found.error is not None:
            response = message.error_of(found.error)
            raise UnavailableError(response.message if response else f"{found.error}")
        if found.result is None:
            return None
        self._gateway.check_cluster(found.result.header.cluster_id)
        if found.result.canceled:
            self._raise_canceled(found.result)
        return self._events(found.result.events) if found.result.events else None

    def _raise_canceled(self, result: message.WatchResult) -> None:
        if result.compact_revision:
            raise CompactedError(self.position + 1, result.compact_revision + 1)
        raise UnavailableError(f"etcd has cancelled the watch: {result.cancel_reason or '?'}")

    def _events(self, found: list[message.GatewayEvent]) -> WatchEvents | None:
        known = self.position
        events: list[WatchEvent] = []
        for event in found:
            revision = event.kv.mod_revision
            if revision <= known:
                continue
            if revision < self.position:
                raise MetadataStoreError(f"etcd reports revision {revision} after {self.position}")
            self.position = revision
            key = event.kv.key.removeprefix(self._root).decode()
            if key.startswith(self._prefix) and key != self._progress_key:
                value = None if event.type == "DELETE" else event.kv.value
                events.append(WatchEvent(key, value, revision))
        return WatchEvents(self.position, events) if self.position > known else None
