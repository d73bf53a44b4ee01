"""Read-process-write on three brokers while the transaction coordinator is killed.

Each input is in the output once. The killed broker may also coordinate the processor's group.
librdkafka 2.16 can then wait for ever in `send_offsets_to_transaction`, in spite of its timeout,
for a connection to a coordinator that is no longer in the metadata (confluentinc/librdkafka,
issues 5511 and 5456). So a supervisor replaces a processor that is silent for too long.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.process.brokers import started
from transactions_clients.program import Program
from transactions_clients.stable import SETTINGS
from transactions_clients.test_read_process_write import check_output
from transactions_clients.work import INPUT, OUTPUT, PARTITIONS, Work

INPUTS_PER_ROUND = 120
#: The points at which the coordinator is killed; the processor continues at the same time.
MOMENTS = ("sent", "ready")
#: More than the 30 s that each of the processor's calls may take.
PATIENCE_S = 40.0


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_each_input_is_in_the_output_once(
    tmp_path: Path, program_named: Callable[[str], Program]
) -> None:
    with started(tmp_path, 3, SETTINGS) as brokers:
        for topic in (INPUT, OUTPUT):
            brokers.create_topic(topic, PARTITIONS)
        work = Work(brokers, program_named("confluent"), tmp_path, PATIENCE_S)
        try:
            for moment in MOMENTS:
                work.add_inputs(INPUTS_PER_ROUND)
                while work.advance().point != moment:
                    work.go()
                work.go()
                killed = work.kill_broker()
                # The other brokers must elect a new coordinator.
                work.finish()
                brokers.start(killed)
        finally:
            work.kill_processor()
        check_output(work, brokers.bootstrap)
        brokers.check_logs()
