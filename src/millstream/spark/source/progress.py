"""How far a query is, as the offsets of a consumer group, so that its lag can be seen as any other.

The source commits by itself where `kafka.group.id` is given, but Spark tells it of a finished batch
only when the next one is begun, and never of the last. `commit_progress` closes that gap, in the
process that started the query:

    query = frame.writeStream.start()
    commit_progress(query, options)       the options of the source, with kafka.group.id

A query with several sources gets one call for each of them, with that source's options and group.
Only the source that reads what the options say is committed to their group (`offsets_of`).

Nobody's reading depends on these offsets: the query's own are in its checkpoint. So what fails here
is logged, and the query goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

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

from millstream.model.error import BrokerError, ErrorCode
from millstream.protocol.cluster_client import GROUP, Cluster, TopicPartition
from millstream.protocol.connection_setting import ConnectionSettings
from millstream.spark.error import OptionError, ProtocolError, logger
from millstream.spark.source.options import Subscription, stream_options
from millstream.spark.source.position import offsets_from_json
from millstream.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse

#: The last version that names topics.
_BY_NAME_VERSION: Final = 9
#: A query does not wait longer for something that only reports on it.
_DEADLINE_MS_MAX: Final = 5_000


class GroupProgress:
    """Commits offsets for a group of which nobody is a member."""

    def __init__(self, settings: ConnectionSettings, group_id: str) -> None:
        deadline_ms = min(settings.deadline_ms, _DEADLINE_MS_MAX)
        self._cluster = Cluster(replace(settings, deadline_ms=deadline_ms))
        self._group_id = group_id

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Say that everything below `offsets` was read. What goes wrong is logged."""
        try:
            self._cluster.attempt("commit progress", lambda: self._commit(offsets))
        except (BrokerError, ProtocolError) as error:
            logger.warning("progress was not committed to group %s: %s", self._group_id, error)

    def close(self) -> None:
        self._cluster.close()

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        shape = OffsetCommitRequest.Topic
        rows: dict[str, OffsetCommitRequest.Topic] = {}
        for (topic, partition), offset in offsets.items():
            row = rows.setdefault(topic, shape(name=topic, partitions=[]))
            row.partitions.append(
                shape.Partition(
                    partition_index=partition, committed_offset=offset, committed_metadata=""
                )
            )
        request = OffsetCommitRequest(group_id=self._group_id, topics=list(rows.values()))
        link = self._cluster.coordinator_link(self._group_id, GROUP)
        answer = link.call(request, OffsetCommitResponse, _BY_NAME_VERSION)
        for topic_row in answer.topics:
            for part in topic_row.partitions:
                if part.error_code != ErrorCode.NONE:
                    raise BrokerError(
                        ErrorCode(part.error_code),
                        f"the answer for {topic_row.name}-{part.partition_index}",
                    )


class ProgressListener(StreamingQueryListener):
    """Commits what the batches of one query have read of one source; see `commit_progress`."""

    def __init__(self, query_id: str, progress: GroupProgress, subscription: Subscription) -> None:
        self._query_id = query_id
        self._progress = progress
        self._subscription = subscription
        self._is_missed = False

    def commit(self, progress: StreamingQueryProgress) -> None:
        """Commit the ends of a finished batch."""
        offsets = offsets_of(progress.sources, self._subscription)
        if offsets:
            self._progress.commit(offsets)
        elif not self._is_missed:
            self._is_missed = True
            logger.warning(
                "progress was not committed: no source of query %s reads what the options say",
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
    """Commit after each finished batch of `query`, from now on and including the last, how far it
    is, to the `kafka.group.id` of `options`. These are the options that its source was given, or
    one of its sources.

    Also good after the query has ended. Raises OptionError if no group is named.
    """
    parsed = stream_options(options)
    if parsed.group_id is None:
        raise OptionError("kafka.group.id must be given: progress is committed to that group")
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
    """The session of this process, which runs its queries."""
    session = SparkSession.getActiveSession()
    if session is None:
        raise ProtocolError("this process has no Spark session, so it runs no query")
    return session


def offsets_of(
    sources: Iterable[SourceProgress], subscription: Subscription
) -> dict[TopicPartition, int]:
    """The ends of the source that reads these topics or partitions, among all sources of a query.

    Spark does not tell sources apart, so this goes by what they have read. A source that has read
    other topics as well is another one. Of several that have read the same, the one that is behind
    counts: the query is not further than that.
    """
    found = [offsets for each in sources if (offsets := _offsets(each.endOffset)) is not None]
    chosen = [offsets for offsets in found if offsets and all(map(subscription.reads, offsets))]
    # A source of fewer topics is meant only if no source has them all: topics may be gone.
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
    """A source's end, if it is of this kind: other sources of a query have other ones."""
    value: object = None if text is None else json.loads(text)
    if isinstance(value, dict) and all(
        isinstance(row, dict) and all(isinstance(offset, int) for offset in row.values())
        for row in value.values()
    ):
        return offsets_from_json(value)
    return None
