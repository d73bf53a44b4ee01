"""What the Delta and Iceberg stores share: the schema, coverage in commits, and pending files.

The commit of a table format decides which files belong to the table. Before files are moved to
their final folders, their paths are written to a list:

    ROOT/_millstream/pending.json    paths below the root that the next commit will name

The next run removes the listed files that the table does not name.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millstream.spark.job.commit_log import FOLDER, sync
from millstream.spark.job.job_error import Failure, JobError
from millstream.spark.job.offset_coverage import OffsetCoverage

if TYPE_CHECKING:
    import pyarrow as pa

#: The key in a table's commit for the offsets that the archive covers with it.
COVERAGE_KEY: Final = "millstream.coverage"
#: The catalog of an Iceberg table, in the folder of commits.
CATALOG: Final = "catalog.db"
_PENDING: Final = "pending.json"


def require_package(module: str, extra: str) -> None:
    """Raise JobError unless the library of a table format is installed."""
    try:
        importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise JobError(
            Failure.FAILED,
            f"this format needs {package}, which is not installed:"
            f' pip install "millstream[{extra}]".',
        ) from None


def coverage_property(coverage: OffsetCoverage) -> dict[str, str]:
    """Return the property that stores the coverage in a table's commit."""
    return {COVERAGE_KEY: json.dumps(coverage.as_json())}


def parse_coverage(text: str) -> OffsetCoverage:
    """Return the coverage of a commit's property."""
    return OffsetCoverage.from_json(json.loads(text))


def no_coverage_error(root: Path, kind: str) -> JobError:
    """Return the error for a table with files whose commits name no offsets."""
    return JobError(
        Failure.FAILED,
        f"{root}: the {kind} table has files, but none of its remaining commits names their"
        " offsets. Archive into another folder.",
    )


def arrow_schema(*, with_hours: bool) -> pa.Schema:
    """Return the columns of an archive as an Arrow schema."""
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
    """List files that are about to be moved to their final folders."""
    target = root / FOLDER / _PENDING
    temporary = target.with_suffix(".tmp")
    with temporary.open("w") as file:
        json.dump(sorted(paths), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target)
    sync(target.parent)


def remove_pending(root: Path, named: Collection[str]) -> None:
    """Remove the listed files that are not in `named`, the files of the table, and the list."""
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
