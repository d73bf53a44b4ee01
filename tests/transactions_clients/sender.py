"""Programs that send transactions of many records to many partitions, pipelined.

There is one in `senders/` for each client. Each uses the default settings of its client, so that
requests are pipelined as by default. Arguments: bootstrap, transactional id, topic, number of
partitions, number of transactions, records per transaction, the interval of aborts (every n-th
transaction is aborted), and the size of a value in bytes.

A record's value begins with `<transaction> <number> `, both counted from 0; record n goes to
partition n modulo the number of partitions. A sender does not retry: it exits with an error as soon
as its client reports one.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from transactions_clients.program import Program

SECONDS_MAX = 240.0


@dataclass(frozen=True, slots=True)
class Sending:
    """The arguments of one sender."""

    partitions: int
    transactions: int
    records: int
    abort_every: int
    value_bytes: int

    def arguments(self) -> list[str]:
        numbers = (
            self.partitions,
            self.transactions,
            self.records,
            self.abort_every,
            self.value_bytes,
        )
        return [str(number) for number in numbers]

    def committed(self, partition: int) -> list[str]:
        """Return the prefixes of a partition's committed values, in order."""
        return [
            f"{transaction} {number}"
            for transaction in range(self.transactions)
            if (transaction + 1) % self.abort_every
            for number in range(partition, self.records, self.partitions)
        ]


def run_sender(
    program: Program, bootstrap: str, transactional_id: str, topic: str, sending: Sending
) -> None:
    """Wait until all transactions have ended; fail with the sender's output otherwise."""
    done = subprocess.run(
        [*program.command, bootstrap, transactional_id, topic, *sending.arguments()],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS_MAX,
        env={**os.environ, **program.environment},
    )
    said = done.stderr[-4000:] + done.stdout[-4000:]
    assert done.returncode == 0, f"the sender exited with {done.returncode}: {said}"
