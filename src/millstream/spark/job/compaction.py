"""Small files of an archive joined: `compact` rewrites those of folders that have several.

A folder of an hour that a continuous run archived minute by minute has many small files. Those
smaller than half of the target become as few as fit it, in one commit that adds the new ones and
takes the old ones away; offsets stay what they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from millstream.spark.job.archive_layout import write
from millstream.spark.job.archive_store import File, ParquetStore
from millstream.spark.job.report import Step
from millstream.spark.job.run import Run

#: Folders that are rewritten in one commit.
_FOLDERS_MAX: Final = 64


def small_files(files: Iterable[File], file_bytes: int) -> list[list[File]]:
    """The files to join, folder by folder."""
    folders: defaultdict[str, list[File]] = defaultdict(list)
    for each in files:
        if each.bytes < file_bytes // 2:
            folders[each.path.rpartition("/")[0]].append(each)
    return [found for _, found in sorted(folders.items()) if len(found) > 1]


def compact(run: Run, store: ParquetStore, file_bytes: int) -> int:
    """Join small files; the number of those that went. Needs the lock."""
    folders = small_files(store.committed().files, file_bytes)
    done = 0
    for at in range(0, len(folders), _FOLDERS_MAX):
        if run.stop.is_set():
            break
        run.progress(Step("compacting", at, len(folders), "folders"))
        old = [each for found in folders[at : at + _FOLDERS_MAX] for each in found]
        topics = sorted({each.path.partition("/")[0].removeprefix("topic=") for each in old})
        staged = store.staging()
        write(store.read_files(run.session(), old, topics), staged, file_bytes)
        run.progress(Step("compacted", at, len(folders), "folders"))
        store.replace(staged, old)
        run.progress(Step("replaced", at, len(folders), "folders"))
        store.finish(staged)
        done += len(old)
    return done
