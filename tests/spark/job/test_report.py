from __future__ import annotations

import pytest

from millstream.cli.job.job_frame import print_report
from millstream.spark.job.report import Report, Table

REPORT = Report(
    "archive",
    "2 records were archived.",
    {"records": 2000, "bytes a second": 1.5, "complete": True, "left": None},
    (
        Table.of("by partition", ["topic", "next offset"], [("orders", 12), ("returns", 3400)]),
        Table.of("empty", ["topic"], []),
    ),
    notes=("orders-1 had nothing new.",),
    is_dry=True,
)


def test_json_has_facts_and_tables_by_name() -> None:
    assert REPORT.as_json() == {
        "job": "archive",
        "ok": True,
        "dry_run": True,
        "outcome": "2 records were archived.",
        "records": 2000,
        "bytes_a_second": 1.5,
        "complete": True,
        "left": None,
        "by_partition": [
            {"topic": "orders", "next_offset": 12},
            {"topic": "returns", "next_offset": 3400},
        ],
        "empty": [],
        "notes": ["orders-1 had nothing new."],
    }


def test_only_columns_of_numbers_are_numeric() -> None:
    table = Table.of("t", ["a", "b", "c"], [(1, "x", True), (2.5, "y", False)])
    assert table.numeric() == ("a",)
    assert Table.of("t", ["a"], []).numeric() == ()


def test_other_tools_read_the_same_records(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(REPORT)
    shown = capsys.readouterr()
    assert "records         2,000" in shown.out
    assert "complete        yes" in shown.out
    assert "3,400" in shown.out
    assert "empty" not in shown.out
    assert "orders-1 had nothing new." in shown.err
    assert "dry run" in shown.err
