"""Commit the progress of a streaming query to a consumer group, so that tools can show its lag.

The source commits offsets itself where `kafka.group.id` is set. Spark notifies the source of a
finished batch only when the next batch begins, so the source never commits the last batch.
`commit_progress` commits every finished batch. Call it in the process that started the query:

    query = frame.writeStream.start()
    commit_progress(query, options)       the options of the source, with kafka.group.id

For a query with several sources, call it once per source with the options and group of that source.
`source_offsets` finds the source that matches the options.

The query reads its own offsets from its checkpoint and never from the group. A failed commit is
therefore logged, and the query continues.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQuery

from millstream.model.topic import TopicPartition
from millstream.spark.error import OptionError, ProtocolError
from millstream.spark.source.group_progress import GroupProgress
from millstream.spark.source.offset_position import offsets_from_json
from millstream.spark.source.source_options import TopicSelection, stream_options

_logger = logging.getLogger(__name__)


class ProgressListener(StreamingQueryListener):
    """Commits the end offsets of one source after each batch of a query."""

    def __init__(
        self, query_id: str, progress: GroupProgress, subscription: TopicSelection
    ) -> None:
        self._query_id = query_id
        self._progress = progress
        self._subscription = subscription
        self._has_warned = False

    def commit(self, progress: StreamingQueryProgress) -> None:
        """Commit the end offsets of a finished batch."""
        offsets = source_offsets(progress.sources, self._subscription)
        if offsets:
            self._progress.commit(offsets)
        elif not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "progress was not committed: no source of query %s matches the options",
                self._query_id,
            )

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        if str(event.progress.id) == self._query_id:
            self.commit(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        if str(event.id) == self._query_id:
            self._progress.close()


def commit_progress(query: StreamingQuery, options: Mapping[str, str]) -> None:
    """Commit the offsets of `query` to a group after each finished batch, including the last one.

    `options` are the options of one of its sources, with `kafka.group.id`. The query may have ended
    already. Raises OptionError if there is no group.
    """
    parsed = stream_options(options)
    if parsed.group_id is None:
        raise OptionError("kafka.group.id must be set: progress is committed to that group")
    progress = GroupProgress(parsed.connection, parsed.group_id)
    listener = ProgressListener(str(query.id), progress, parsed.subscription)
    is_active = query.isActive
    if is_active:
        _session().streams.addListener(listener)
    last = query.lastProgress
    if last is not None:
        listener.commit(last)
    if not is_active:
        progress.close()


def _session() -> SparkSession:
    """Return the session of this process, which runs its queries."""
    session = SparkSession.getActiveSession()
    if session is None:
        raise ProtocolError("this process has no Spark session, so it runs no query")
    return session


def source_offsets(
    sources: Iterable[SourceProgress], subscription: TopicSelection
) -> dict[TopicPartition, int]:
    """Return the end offsets of the source that reads these topics or partitions.

    Spark does not identify sources, so they are identified by their partitions. A source with other
    topics does not match. If several sources match, the lowest offsets count, because the query is
    only as far as its slowest source.
    """
    found = [offsets for each in sources if (offsets := _offsets(each.endOffset)) is not None]
    chosen = [offsets for offsets in found if offsets and all(map(subscription.reads, offsets))]
    # A source with fewer topics matches only if no source has all of them: topics get deleted.
    most = max((len(_topics(offsets)) for offsets in chosen), default=0)
    ends: dict[TopicPartition, int] = {}
    for offsets in chosen:
        if len(_topics(offsets)) == most:
            for key, offset in offsets.items():
                ends[key] = min(offset, ends.get(key, offset))
    return ends


def _topics(offsets: Iterable[TopicPartition]) -> set[str]:
    return {key.topic for key in offsets}


def _offsets(text: str | None) -> dict[TopicPartition, int] | None:
    """Parse the end of a source. Return None for sources of another kind."""
    value: object = None if text is None else json.loads(text)
    if isinstance(value, dict) and all(
        isinstance(row, dict) and all(isinstance(offset, int) for offset in row.values())
        for row in value.values()
    ):
        return offsets_from_json(value)
    return None
