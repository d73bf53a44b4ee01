from __future__ import annotations

from millstream.spark.job.archiving.archive_store import ArchiveFile
from millstream.spark.job.archiving.file_compaction import small_files


def test_folders_with_several_small_files() -> None:
    small = [ArchiveFile(f"topic=a/hour=1/{n}", 1, 10) for n in range(3)]
    others = [
        ArchiveFile("topic=a/hour=1/large", 9, 60),
        ArchiveFile("topic=a/hour=2/alone", 1, 10),
        ArchiveFile("topic=a/hour=2/large", 9, 100),
    ]
    assert small_files([*others, *small], 100, _folder) == [small]
    assert small_files(others, 100, _folder) == []


def _folder(file: ArchiveFile) -> str:
    return file.path.rpartition("/")[0]
