from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.spark.job.archive_store import ParquetStore
from millstream.spark.job.coverage import Coverage, Place, Span

BATCHES = 260


def test_old_commits_go_and_nothing_with_them(tmp_path: Path) -> None:
    store = ParquetStore(tmp_path)
    coverage = Coverage()
    row = pa.table({"offset": [1]})
    with store.lock():
        for number in range(BATCHES):
            staged = store.staging()
            folder = staged / "topic=t" / "date=2026-01-31" / "hour=1"
            folder.mkdir(parents=True)
            pq.write_table(row, folder / f"{number}.parquet")
            (staged / "_SUCCESS").touch()
            coverage = coverage.extended({Place("t", 0): Span(number, number + 1)}, {"t": "id"})
            store.commit(staged, coverage)
            store.finish(staged)
    commits = sorted((tmp_path / "_millstream").glob("*.json"))
    assert 100 <= len(commits) <= 151
    state = ParquetStore(tmp_path).committed()
    assert state.number == BATCHES
    assert sorted(int(Path(each.path).stem) for each in state.files) == [*range(BATCHES)]
    assert state.coverage.spans == {Place("t", 0): (Span(0, BATCHES),)}
