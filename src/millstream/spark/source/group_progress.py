"""Commits the offsets that a streaming query has read to a consumer group without members.

The offsets only show the progress of the query. A failed commit is logged, never raised.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from millstream.model.error import BrokerError, ErrorCode
from millstream.model.topic import TopicPartition
from millstream.protocol.cluster_client import GROUP, ClusterClient
from millstream.protocol.connection_setting import ConnectionSettings
from millstream.spark.error import ProtocolError
from millstream.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse

_logger = logging.getLogger(__name__)
#: The last version that names topics.
_BY_NAME_VERSION: Final = 9
#: Progress commits must not delay the query for longer.
_DEADLINE_MS_MAX: Final = 5_000


class GroupProgress:
    """Commits offsets for a group without members."""

    def __init__(self, settings: ConnectionSettings, group_id: str) -> None:
        deadline_ms = min(settings.deadline_ms, _DEADLINE_MS_MAX)
        self._cluster = ClusterClient(replace(settings, deadline_ms=deadline_ms))
        self._group_id = group_id

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit that all records below `offsets` were read. Errors are logged."""
        try:
            self._cluster.attempt("commit progress", lambda: self._commit(offsets))
        except (BrokerError, ProtocolError) as error:
            _logger.warning("progress was not committed to group %s: %s", self._group_id, error)

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
        connection = self._cluster.coordinator_connection(self._group_id, GROUP)
        response = connection.call(request, OffsetCommitResponse, _BY_NAME_VERSION)
        for topic_row in response.topics:
            for part in topic_row.partitions:
                if part.error_code != ErrorCode.NONE:
                    raise BrokerError(
                        ErrorCode(part.error_code),
                        f"committing {topic_row.name}-{part.partition_index}",
                    )
