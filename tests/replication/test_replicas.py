"""The partitions of a broker: leadership while the broker is fenced, and flushes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harness.in_process.replica_home import ReplicaHome, picture
from millstream.log.flush.flusher import Flusher
from millstream.model.error import BrokerError, ErrorCode

TOPIC_ID = bytes(range(16))


def test_a_fenced_broker_leads_only_partitions_without_another_in_sync_replica(
    tmp_path: Path,
) -> None:
    shared = ("shared", TOPIC_ID, 1)

    async def main() -> None:
        home = ReplicaHome(tmp_path / "shared", picture(shared, isr=(1, 2)))
        replicas = home.open_replicas()
        assert replicas.find("shared", 0).is_leader
        replicas.fence(True)
        assert not replicas.find("shared", 0).is_leader
        # A change from before the fencing must not restore leadership.
        home.apply_image(picture(shared, isr=(1, 2), epoch=1))
        assert not replicas.find("shared", 0).is_leader
        replicas.fence(False)
        assert replicas.find("shared", 0).is_leader
        assert replicas.find("shared", 0).leader_epoch == 1

        alone = ReplicaHome(tmp_path / "alone", picture(("alone", TOPIC_ID, 1)))
        replicas = alone.open_replicas()
        replicas.fence(True)
        assert replicas.find("alone", 0).is_leader

    asyncio.run(main())


def test_a_fenced_broker_does_not_lead_new_partitions(tmp_path: Path) -> None:
    async def main() -> None:
        home = ReplicaHome(tmp_path, picture())
        replicas = home.open_replicas()
        replicas.fence(True)
        home.apply_image(picture(("new", TOPIC_ID, 1), isr=(1, 2)))
        assert not replicas.find("new", 0).is_leader
        replicas.fence(False)
        assert replicas.find("new", 0).is_leader

    asyncio.run(main())


def test_make_durable_waits_for_all_logs_even_if_one_flush_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower acknowledges the records of the other logs."""

    async def main() -> None:
        home = ReplicaHome(tmp_path, picture(("t", TOPIC_ID, 2)))
        replicas = home.open_replicas()
        bad, good = replicas.find("t", 0), replicas.find("t", 1)
        ended: dict[object, asyncio.Future[int]] = {
            each.log: asyncio.get_running_loop().create_future() for each in (bad, good)
        }
        monkeypatch.setattr(Flusher, "request", lambda _, log: ended[log])
        waiting = asyncio.create_task(replicas.make_durable([bad, good]))
        ended[bad.log].set_exception(BrokerError(ErrorCode.KAFKA_STORAGE_ERROR))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        ended[good.log].set_result(1)
        with pytest.raises(BrokerError):
            await waiting

    asyncio.run(main())
