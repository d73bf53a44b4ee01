"""The audit file: lines, and files of bounded size and number."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.audit.audit_file import AuditFile
from millstream.env.disk import SystemDisk


def test_lines_are_appended_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "audit.json"
    for number in range(3):
        file = AuditFile(SystemDisk(), path, 1000, 3)
        file.write(b"line %d\n" % number)
        file.close()
    assert path.read_bytes() == b"line 0\nline 1\nline 2\n"


def test_an_incomplete_line_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    path.write_bytes(b"line 0\nli")
    file = AuditFile(SystemDisk(), path, 1000, 3)
    file.write(b"line 1\n")
    file.close()
    assert path.read_bytes().splitlines() == [b"line 0", b"li", b"line 1"]


def test_a_full_file_is_renamed_and_the_oldest_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    file = AuditFile(SystemDisk(), path, 10, 3)
    for number in range(6):
        file.write(b"line %d\n" % number)
    file.close()
    found = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert found == {
        "audit.json": b"line 5\n",
        "audit.json.1": b"line 4\n",
        "audit.json.2": b"line 3\n",
    }


def test_one_file_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    file = AuditFile(SystemDisk(), path, 10, 1)
    for number in range(3):
        file.write(b"line %d\n" % number)
    file.close()
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"line 2\n"]
