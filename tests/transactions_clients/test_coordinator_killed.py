"""Read-process-write on three brokers while that which coordinates the transactions is killed: each
input is in the output once.

It may coordinate the processor's group as well. librdkafka 2.16 then can wait for ever in
`send_offsets_to_transaction`, whatever timeout it was given: for a connection to a coordinator that
the metadata no longer name (confluentinc/librdkafka, issues 5511 and 5456). So the processor has a
supervisor, which replaces one that is silent for longer than any of its calls may take.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.process_cluster import ProcessCluster
from harness.raw_transaction import TRANSACTION
from transactions_clients.program import Program
from transactions_clients.stable import SETTINGS
from transactions_clients.test_read_process_write import check_output
from transactions_clients.work import INPUT, OUTPUT, PARTITIONS, Work

INPUTS_PER_ROUND = 10
#: When the coordinator is killed; the processor goes on at the same time.
MOMENTS = ("sent", "ready")
#: More than the 30 s that each of the processor's calls may take.
PATIENCE_S = 40.0
#: What is coordinated outlives a broker.
REPLICATED = {
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
}


class Victim:
    """The broker that coordinates the processor's transactions, for `Work`."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self._cluster = cluster
        self.bootstrap = cluster.bootstrap
        self.killed: list[int] = []

    def kill(self) -> None:
        number = self._cluster.coordinator("processor", TRANSACTION)
        self._cluster[number].kill()
        self.killed.append(number)

    def start(self) -> None:
        """Not yet: the others have to do without it."""

    def return_last(self) -> None:
        self._cluster[self.killed[-1]].start()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_each_input_is_in_the_output_once(
    tmp_path: Path, program_named: Callable[[str], Program]
) -> None:
    with ProcessCluster(tmp_path, settings={**SETTINGS, **REPLICATED}) as cluster:
        for topic in (INPUT, OUTPUT):
            cluster.create_topic(topic, PARTITIONS)
        victim = Victim(cluster)
        work = Work(victim, program_named("confluent"), tmp_path, PATIENCE_S)
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
        for broker in cluster:
            assert "Traceback" not in broker.log_text()
