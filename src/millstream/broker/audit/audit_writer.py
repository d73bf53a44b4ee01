"""Writes the events of the audit trail: to the audit file first, then to the topic.

A task takes events from the queue in small batches. While the topic cannot be written, the task
retries with the same batch, and the queue fills up. At a shutdown the remaining events are written
to the file, and to the topic if this broker leads it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from millstream.broker.audit.audit_file import AuditFile
from millstream.broker.audit.audit_queue import AuditQueue, AuditRecord, encode_record
from millstream.broker.audit.audit_topic import AuditTopic
from millstream.env.supervisor import SupervisedTask, Supervisor
from millstream.metadata.store.port import MetadataStoreError
from millstream.model.error import BrokerError, ErrorCode

_logger = logging.getLogger(__name__)

#: Events of one batch: with the largest texts they stay below the default of `max.message.bytes`.
_EVENTS_MAX: Final = 50
_RETRY_S: Final = 1.0
#: A retry of the same batch would fail again.
_PERMANENT: Final = (
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
)


class AuditWriter:
    """Writes queued events. `start` begins, `stop` ends. Event loop only."""

    __slots__ = (
        "_batch",
        "_file",
        "_is_failing",
        "_is_file_failing",
        "_queue",
        "_task",
        "_topic",
        "failures",
    )

    def __init__(self, queue: AuditQueue, topic: AuditTopic, file: AuditFile | None) -> None:
        self._queue = queue
        self._topic = topic
        self._file = file
        #: Events that are in the file, but not in the topic yet.
        self._batch: list[AuditRecord] = []
        self._task: SupervisedTask | None = None
        #: Whether the last write to the topic failed: only the first failure in a row is logged.
        self._is_failing = False
        #: The same for the file.
        self._is_file_failing = False
        #: Failed writes since the start of the broker.
        self.failures = 0

    def start(self, supervisor: Supervisor) -> None:
        self._task = supervisor.start("audit-writer", self._run)

    async def stop(self) -> None:
        """Stop the task, and write the remaining events if that needs no other broker."""
        if self._task is not None:
            await self._task.stop()
        while self._batch or len(self._queue):
            if not self._batch:
                self._take()
            try:
                self._topic.append_now(self._batch)
            except BrokerError as error:
                self._failed(error)
                self._queue.dropped += len(self._batch)
            self._batch = []
        if self._file is not None:
            self._file.close()

    async def _run(self) -> None:
        while True:
            if not self._batch:
                await self._queue.wait()
                self._take()
            try:
                await self._topic.append(self._batch)
            except (BrokerError, MetadataStoreError) as error:
                self._failed(error)
                if not isinstance(error, BrokerError) or error.code not in _PERMANENT:
                    await asyncio.sleep(_RETRY_S)
                    continue
                self._queue.dropped += len(self._batch)
            else:
                self._is_failing = False
            self._batch = []

    def _take(self) -> None:
        """Take the next batch, and write it to the file."""
        self._batch = self._queue.take(_EVENTS_MAX)
        if self._file is not None:
            self._write_file(self._file, self._batch)

    def _write_file(self, file: AuditFile, batch: Sequence[AuditRecord]) -> None:
        try:
            file.write(b"".join(encode_record(record) + b"\n" for record in batch))
        except OSError as error:
            file.close()
            self.failures += 1
            if not self._is_file_failing:
                self._is_file_failing = True
                _logger.error("the audit file cannot be written: %s", str(error))
        else:
            self._is_file_failing = False

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if not self._is_failing:
            self._is_failing = True
            code = error.code.name if isinstance(error, BrokerError) else ""
            _logger.warning("audit events are not in the audit topic yet: %s %s", code, error)
