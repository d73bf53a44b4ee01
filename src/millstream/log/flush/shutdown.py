"""Flushing all logs at shutdown, several at a time."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from millstream.log.flush.ticket import FlushTicket
from millstream.log.log import PartitionLog
from millstream.model.error import BrokerError

#: Most tickets at a time: each pins a few descriptors.
_GROUP_LOGS: Final = 256


def flush_all(logs: Iterable[PartitionLog], threads: int) -> bool:
    """Flush all logs before they are closed. Returns whether all flushes succeeded. Blocks."""
    tickets: list[tuple[PartitionLog, FlushTicket]] = []
    is_whole = True
    with ThreadPoolExecutor(threads, "millstream-close") as pool:
        for log in logs:
            try:
                ticket = log.begin_close()
            except BrokerError:
                is_whole = False
                continue
            if ticket is not None:
                tickets.append((log, ticket))
            if len(tickets) >= _GROUP_LOGS:
                is_whole = _run(pool, tickets) and is_whole
        return _run(pool, tickets) and is_whole


def _run(pool: ThreadPoolExecutor, tickets: list[tuple[PartitionLog, FlushTicket]]) -> bool:
    list(pool.map(FlushTicket.run, [ticket for _, ticket in tickets]))
    is_whole = True
    for log, ticket in tickets:
        try:
            log.finish_flush(ticket)
        except BrokerError:
            is_whole = False
    tickets.clear()
    return is_whole
