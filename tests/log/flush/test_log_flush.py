"""Flushes of one log: what they cover, and when the recovery point moves."""

from __future__ import annotations

from harness.in_process.log_home import LogHome, append


def test_a_log_without_changes_needs_no_flush(home: LogHome) -> None:
    log = home.open()
    assert log.begin_flush() is None
    append(log)
    log.flush()
    assert log.begin_flush() is None


def test_a_flush_covers_what_was_appended_before_it_began(home: LogHome) -> None:
    log = home.open()
    append(log)
    ticket = log.begin_flush()
    assert ticket is not None
    append(log)
    ticket.run()
    log.finish_flush(ticket)
    assert log.recovery_point == 1
    assert log.unsynced.has_data


def test_a_flush_that_began_before_a_truncation_proves_nothing(home: LogHome) -> None:
    log = home.open()
    for _ in range(3):
        append(log)
    ticket = log.begin_flush()
    assert ticket is not None
    ticket.run()
    log.truncate_to(1)
    append(log)
    append(log)
    log.finish_flush(ticket)
    assert log.recovery_point == 0
    assert log.flushing.in_progress == 0


def test_a_log_is_not_unloaded_while_a_flush_is_in_progress(home: LogHome) -> None:
    log = home.open()
    append(log)
    ticket = log.begin_flush()
    assert ticket is not None
    log.segment_files.active = None
    assert not log.unload()
    ticket.run()
    log.finish_flush(ticket)
    assert log.unload()
