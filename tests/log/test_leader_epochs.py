"""Leader epochs of one log, loaded when first needed."""

from __future__ import annotations

from harness.in_process.log_home import LogHome, append


def test_an_epoch_assigned_to_an_idle_log_counts_once_it_is_loaded(home: LogHome) -> None:
    log = home.open()
    append(log, epoch=3)
    log = home.reopen(clean=True)
    log.assign_epoch(5)
    assert log.leader_epochs.cache is None
    assert log.epochs.entries == [(3, 0), (5, 1)]


def test_an_assigned_epoch_without_records_is_dropped(home: LogHome) -> None:
    log = home.open()
    append(log, epoch=3)
    log = home.reopen(clean=True)
    log.assign_epoch(5)
    log.drop_unused_epochs()
    assert log.epochs.entries == [(3, 0)]
    log.assign_epoch(6)
    assert log.latest_epoch == 6
    log.drop_unused_epochs()
    assert (log.latest_epoch, log.last_record_epoch) == (3, 3)


def test_epochs_that_the_file_lacks_stay_in_memory(home: LogHome) -> None:
    log = home.open()
    append(log, epoch=3)
    log.leader_epochs.unload()
    assert log.leader_epochs.cache is not None
    log.flush()
    log.leader_epochs.unload()
    assert log.leader_epochs.cache is None
    assert log.epochs.entries == [(3, 0)]


def test_a_damaged_checkpoint_costs_only_the_epochs(home: LogHome) -> None:
    log = home.open()
    append(log, epoch=3)
    log = home.reopen(clean=True)
    (log.directory / "leader-epoch-checkpoint").write_text("nonsense")
    assert log.epochs.entries == []
    assert log.log_end_offset == 1
