"""What principals needed while the authorizer was in learning mode. Pure.

A row is a principal, an operation and a resource, with the last address and the last groups of the
principal. The table is bounded: when it is full, new rows are counted and dropped, and the present
rows stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
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
    #: In text form: `Group:developers`.
    groups: Collection[str] = ()


class Observations:
    """The table of one broker."""

    __slots__ = ("_clients", "omitted")

    def __init__(self) -> None:
        #: Address and groups.
        self._clients: dict[
            tuple[str, Operation, ResourceType, str], tuple[str, Collection[str]]
        ] = {}
        #: Observations that the full table left out. One operation may be counted many times.
        self.omitted = 0

    def add(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        groups: Collection[str] = (),
    ) -> None:
        key = (principal, operation, resource_type, name)
        is_full = key not in self._clients and len(self._clients) >= ROWS_MAX
        if is_full or len(name) > NAME_LENGTH_MAX:
            self.omitted += 1
            return
        self._clients[key] = (host, groups)

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Observation]:
        for (principal, operation, resource_type, name), (host, groups) in self._clients.items():
            yield Observation(principal, host, operation, resource_type, name, groups)
