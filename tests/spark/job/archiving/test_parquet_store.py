from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.model.topic import TopicPartition
from millstream.spark.job.archiving.archive_job import TableFormat, open_store
from millstream.spark.job.archiving.parquet_store import ParquetStore
from millstream.spark.job.offset_coverage import OffsetCoverage, OffsetSpan

BATCHES = 260


def test_removing_old_commits_loses_nothing(tmp_path: Path) -> None:
    store = ParquetStore(tmp_path)
    coverage = OffsetCoverage()
    row = pa.table({"offset": [1]})
    with store.lock():
        for number in range(BATCHES):
            staged = store.staging()
            folder = staged / "topic=t" / "date=2026-01-31" / "hour=1"
            folder.mkdir(parents=True)
            pq.write_table(row, folder / f"{number}.parquet")
            (staged / "_SUCCESS").touch()
            coverage = coverage.extended(
                {TopicPartition("t", 0): OffsetSpan(number, number + 1)}, {"t": "id"}
            )
            store.commit(staged, coverage)
            store.finish(staged)
    commits = sorted((tmp_path / "_millstream").glob("*.json"))
    assert 100 <= len(commits) <= 151
    state = ParquetStore(tmp_path).committed()
    assert state.number == BATCHES
    assert sorted(int(Path(each.path).stem) for each in state.files) == [*range(BATCHES)]
    assert state.coverage.spans == {TopicPartition("t", 0): (OffsetSpan(0, BATCHES),)}


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_offsets_without_records_count_too(tmp_path: Path, kind: TableFormat) -> None:
    """Offsets of aborted transactions and markers have no records."""
    store = open_store(tmp_path, kind)
    coverage = OffsetCoverage()
    with store.lock():
        store.recover()
        for number in range(2):
            staged = store.staging()
            staged.mkdir(parents=True)
            (staged / "_SUCCESS").touch()
            coverage = coverage.extended(
                {TopicPartition("t", 0): OffsetSpan(number, number + 1)}, {"t": "id"}
            )
            store.commit(staged, coverage)
            if number:
                store.finish(staged)
            store.recover()
    assert open_store(tmp_path, kind).committed().coverage == coverage
