"""Changes that the next flush must sync."""

from __future__ import annotations

from pathlib import Path

from millstream.log.flush.unsynced import UnsyncedChanges


def test_a_flush_that_did_not_complete_is_repeated() -> None:
    unsynced = UnsyncedChanges()
    unsynced.add_file(Path("a"))
    paths = unsynced.paths
    unsynced.clear()
    assert (unsynced.has_data, unsynced.has_names, unsynced.paths) == (False, False, [])
    unsynced.add_file(Path("b"))
    unsynced.restore(paths, has_names=True)
    assert unsynced.paths == [Path("a"), Path("b")]
    assert unsynced.has_data
    assert unsynced.has_names
