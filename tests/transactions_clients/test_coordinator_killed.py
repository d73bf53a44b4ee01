"""Read-process-write on three brokers while that which coordinates the transactions is killed: each
input is in the output once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cluster_process import ClusterProcess
from harness.etcd_process import require_etcd
from harness.raw_transaction import TRANSACTION
from transactions_clients.program import Program
from transactions_clients.stable import SETTINGS
from transactions_clients.test_read_process_write import check_output
from transactions_clients.work import INPUT, OUTPUT, PARTITIONS, Work

INPUTS_PER_ROUND = 10
#: When the coordinator is killed; the processor goes on at the same time.
MOMENTS = ("sent", "ready")


class Victim:
    """The broker that coordinates the processor's transactions, for `Work`."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self._cluster = cluster
        self.bootstrap = cluster.bootstrap
        self.killed: list[int] = []

    def kill(self) -> None:
        number = self._cluster.coordinator("processor", TRANSACTION)
        self._cluster.kill(number)
        self.killed.append(number)

    def start(self) -> None:
        """Not yet: the others have to do without it."""

    def return_last(self) -> None:
        self._cluster.start(self.killed[-1])


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_each_input_is_in_the_output_once(
    tmp_path: Path, program_named: Callable[[str], Program]
) -> None:
    require_etcd()
    with ClusterProcess(tmp_path, SETTINGS) as cluster:
        for topic in (INPUT, OUTPUT):
            cluster.create_topic(topic, PARTITIONS)
        victim = Victim(cluster)
        work = Work(victim, program_named("confluent"), tmp_path)
        try:
            for moment in MOMENTS:
                work.add_inputs(INPUTS_PER_ROUND)
                while work.advance().point != moment:
                    work.go()
                work.go()
                work.kill_broker()
                work.finish()
                victim.return_last()
        finally:
            work.kill_processor()
        check_output(work, cluster.bootstrap)
        assert len(victim.killed) == len(MOMENTS)
        assert "Traceback" not in cluster.log_text()
