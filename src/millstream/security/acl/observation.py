"""What principals needed while the authorizer was in learning mode. Pure.

A row is a principal, an operation and a resource, with the last address that the principal used.
The table is bounded: when it is full, new rows are counted and dropped, and the present rows stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from millstream.model.acl import Operation, ResourceType

ROWS_MAX: Final = 20_000
#: Longer names are left out: clients choose them.
NAME_LENGTH_MAX: Final = 300


class Observation(NamedTuple):
    """An operation that a principal needed."""

    principal: str
    host: str
    operation: Operation
    resource_type: ResourceType
    name: str


class Observations:
    """The table of one broker."""

    __slots__ = ("_hosts", "omitted")

    def __init__(self) -> None:
        self._hosts: dict[tuple[str, Operation, ResourceType, str], str] = {}
        #: Observations that the full table left out. One operation may be counted many times.
        self.omitted = 0

    def add(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> None:
        key = (principal, operation, resource_type, name)
        is_full = key not in self._hosts and len(self._hosts) >= ROWS_MAX
        if is_full or len(name) > NAME_LENGTH_MAX:
            self.omitted += 1
            return
        self._hosts[key] = host

    def __len__(self) -> int:
        return len(self._hosts)

    def __iter__(self) -> Iterator[Observation]:
        for (principal, operation, resource_type, name), host in self._hosts.items():
            yield Observation(principal, host, operation, resource_type, name)
