"""What the stores of the table formats share: their schema, and files that were never committed.

A table format decides by its own commit, and files that it does not name do not count. Before
they get where readers of the folder would see them, they are noted:

    ROOT/_millstream/pending.json    paths below the root that the next commit is to name

A run that finds the note removes those that the table does not name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millstream.spark.job.commit_log import FOLDER, sync
from millstream.spark.job.job_error import Failure, JobError

if TYPE_CHECKING:
    import pyarrow as pa

#: In a table's commit: all offsets that the archive has with it.
COVERAGE_KEY: Final = "millstream.coverage"
#: In the folder of commits: the catalog of an Iceberg table.
CATALOG: Final = "catalog.db"
_PENDING: Final = "pending.json"


def missing_package_error(package: str, extra: str) -> JobError:
    return JobError(
        Failure.FAILED,
        f'this format needs {package}, which is not installed: pip install "millstream[{extra}]".',
    )


def no_coverage_error(root: Path, kind: str) -> JobError:
    return JobError(
        Failure.FAILED,
        f"{root}: the {kind} table has files, but none of the commits that are left tells their"
        " offsets. Archive into another folder.",
    )


def arrow_schema(*, with_hours: bool) -> pa.Schema:
    """The columns of an archive for those who take Arrow's word."""
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    fields: list[tuple[str, Any]] = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.field("element", header))),
    ]
    if with_hours:
        fields += [("date", pa.date32()), ("hour", pa.int32())]
    return pa.schema(fields)


def write_pending(root: Path, paths: Collection[str]) -> None:
    """Remember files that are about to be put where readers look."""
    target = root / FOLDER / _PENDING
    temporary = target.with_suffix(".tmp")
    with temporary.open("w") as file:
        json.dump(sorted(paths), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target)
    sync(target.parent)


def remove_pending(root: Path, named: Collection[str]) -> None:
    """Remove what was noted and is not among the paths that the table names."""
    note = root / FOLDER / _PENDING
    if not note.exists():
        return
    for path in json.loads(note.read_bytes()):
        place = root / path
        if place.is_dir():
            if not any(each.startswith(f"{path}/") for each in named):
                shutil.rmtree(place)
        elif path not in named:
            place.unlink(missing_ok=True)
    note.unlink()
