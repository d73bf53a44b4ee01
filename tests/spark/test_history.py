"""The history of a topic from archive and log has no gaps and no overlaps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from tests.spark.job.content import KEEPING, messages_of, some_messages

from harness.topic_content import Message, read_messages, write_messages
from millstream.model.topic import TopicPartition
from millstream.spark import read_topic_history
from millstream.spark.history import split_history
from millstream.spark.job import ArchiveOptions, Failure, JobError, archive
from millstream.spark.job.offset_coverage import OffsetCoverage, OffsetGap, OffsetSpan
from millstream.spark.job.topic_offsets import TopicOffsets
from millstream.testing.broker import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _cut(broker: LocalBroker, topic: str, offsets: dict[int, int]) -> None:
    """Delete the records before these offsets, as retention does."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    places = [KafkaPartition(topic, partition, offset) for partition, offset in offsets.items()]
    for response in admin.delete_records(places).values():
        response.result(60)


def test_history_at_the_border_of_archive_and_log() -> None:
    behind, whole, ahead = (TopicPartition("t", n) for n in range(3))
    archived = {behind: OffsetSpan(0, 5), whole: OffsetSpan(0, 8), ahead: OffsetSpan(0, 9)}
    coverage = OffsetCoverage().extended(
        archived | {TopicPartition("other", 0): OffsetSpan(0, 1)}, {}
    )
    coverage = coverage.extended({TopicPartition("other", 0): OffsetSpan(3, 4)}, {})
    log = TopicOffsets(
        {}, {behind: OffsetSpan(7, 9), whole: OffsetSpan(2, 8), ahead: OffsetSpan(0, 4)}
    )
    seam = split_history(coverage, log, "t")
    assert seam.live == {behind: OffsetSpan(7, 9), whole: OffsetSpan(8, 8)}
    assert seam.gaps == [OffsetGap(behind, OffsetSpan(5, 7))]
    assert seam.beyond == [OffsetGap(ahead, OffsetSpan(4, 9))]


def test_the_split_between_archive_and_log(
    spark: SparkSession, broker: LocalBroker, topic_name: str, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers
    broker.create_topic(topic_name, 2, KEEPING)

    def history(allow_gaps: bool = False) -> list[Message]:
        frame = read_topic_history(
            spark,
            topic_name,
            archive=tmp_path,
            bootstrap_servers=servers,
            allow_gaps=allow_gaps,
        )
        return messages_of(frame)

    def write(count: int, seed: int) -> list[Message]:
        write_messages(servers, topic_name, some_messages(count, 2, seed))
        return read_messages(servers, [topic_name])

    everything = write(100, seed=1)
    assert history() == everything, "without an archive it is the log"
    now = ArchiveOptions(available_now=True)
    archive([topic_name], tmp_path, settings=now, bootstrap_servers=servers, spark=spark)
    assert history() == everything, "the log has nothing that the archive has not"

    everything = write(60, seed=2)
    assert history() == everything, "the log still has what was archived"
    _cut(broker, topic_name, {0: 20, 1: 5})
    assert history() == everything, "retention took what was archived"

    archived = {0: 0, 1: 0}
    for each in messages_of(spark.read.parquet(str(tmp_path))):
        archived[each.partition] = max(archived[each.partition], each.offset + 1)
    ends = {0: archived[0] + 3, 1: 1 + max(each.offset for each in everything if each.partition)}
    assert ends[1] > archived[1], "the log of partition 1 has nothing left of what came later"
    _cut(broker, topic_name, ends)
    gaps = [
        f"{topic_name}-{each} offsets {archived[each]} to {end - 1}" for each, end in ends.items()
    ]
    named = re.escape(", ".join(gaps))
    with pytest.raises(JobError, match=named) as caught:
        history()
    assert caught.value.kind is Failure.DATA_LOSS
    lost = {(each, offset) for each, end in ends.items() for offset in range(archived[each], end)}
    rest = [each for each in everything if (each.partition, each.offset) not in lost]
    assert history(allow_gaps=True) == rest
    with pytest.raises(JobError, match=named):
        archive([topic_name], tmp_path, settings=now, bootstrap_servers=servers, spark=spark)
    going_on = ArchiveOptions(available_now=True, allow_gaps=True)
    report = archive(
        [topic_name], tmp_path, settings=going_on, bootstrap_servers=servers, spark=spark
    )
    assert any(f"offsets {archived[0]} to" in each for each in report.notes)
    with pytest.raises(JobError, match=named):
        history()
    assert history(allow_gaps=True) == rest

    broker.delete_topic(topic_name)
    broker.create_topic(topic_name, 2, KEEPING)
    with pytest.raises(JobError, match="deleted and created again"):
        history(allow_gaps=True)
