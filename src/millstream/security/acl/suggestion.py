"""The smallest set of ACLs that allows what clients needed. Pure.

An operation that another one implies needs no ACL of its own: Read, Write, Delete and Alter imply
Describe, AlterConfigs implies DescribeConfigs, and Write on a topic is enough for an idempotent
producer. On request, names with a common prefix become one prefixed pattern; that also allows
names that were not used.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from millstream.model.acl import IMPLIED_BY, Operation, PatternType, ResourceType

_SEPARATOR = re.compile(r"[._-]")


class Need(NamedTuple):
    """An operation that a principal needed, and whether the present ACLs would deny it."""

    principal: str
    operation: Operation
    resource_type: ResourceType
    name: str
    is_denied: bool


class Suggestion(NamedTuple):
    """An ACL that allows operations which a principal needed, from every host."""

    principal: str
    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    operation: Operation
    #: Whether the present ACLs deny an operation that this ACL allows.
    is_missing: bool


def smallest_acls(needs: Iterable[Need], *, merge_prefixes: bool = False) -> list[Suggestion]:
    """Return the ACLs in the order of principals, resources and operations."""
    found = _without_implied(needs)
    suggestions = [
        Suggestion(principal, kind, PatternType.LITERAL, name, operation, is_denied)
        for (principal, kind, name), operations in found.items()
        for operation, is_denied in operations.items()
    ]
    if merge_prefixes:
        suggestions = _without_covered(_merged(suggestions))
    return sorted(suggestions, key=lambda each: (each[0], each[1], each[3], each[2], each[4]))


def _without_implied(
    needs: Iterable[Need],
) -> dict[tuple[str, ResourceType, str], dict[Operation, bool]]:
    """Return, by principal and resource, the operations that need an ACL, and which are denied."""
    found: defaultdict[tuple[str, ResourceType, str], dict[Operation, bool]] = defaultdict(dict)
    writers = set()
    for need in needs:
        operations = found[need.principal, need.resource_type, need.name]
        operations[need.operation] = operations.get(need.operation, False) or need.is_denied
        if (need.resource_type, need.operation) == (ResourceType.TOPIC, Operation.WRITE):
            writers.add(need.principal)
    for (principal, _, _), operations in found.items():
        for implied, implying in IMPLIED_BY.items():
            strongest = next((each for each in operations if each in implying), None)
            if strongest is not None and implied in operations:
                is_denied = operations.pop(implied)
                operations[strongest] = operations[strongest] or is_denied
        if principal in writers:
            operations.pop(Operation.IDEMPOTENT_WRITE, None)
    return found


def _merged(suggestions: list[Suggestion]) -> list[Suggestion]:
    """Merge names of one principal, type and operation that share a prefix with a separator."""
    groups: defaultdict[tuple[str, ResourceType, Operation, str], list[Suggestion]]
    groups = defaultdict(list)
    for each in suggestions:
        separator = _SEPARATOR.search(each.name, 1)
        is_mergeable = separator is not None and each.resource_type is not ResourceType.CLUSTER
        first = each.name[: separator.end()] if separator is not None and is_mergeable else ""
        groups[each.principal, each.resource_type, each.operation, first].append(each)
    merged: list[Suggestion] = []
    for (principal, kind, operation, first), members in groups.items():
        if not first or len(members) == 1:
            merged += members
            continue
        common = _common_prefix([each.name for each in members])
        ends = [match.end() for match in _SEPARATOR.finditer(common)]
        is_missing = any(each.is_missing for each in members)
        merged.append(
            Suggestion(
                principal, kind, PatternType.PREFIXED, common[: ends[-1]], operation, is_missing
            )
        )
    return merged


def _without_covered(suggestions: list[Suggestion]) -> list[Suggestion]:
    """Leave out suggestions that the prefixed pattern of another suggestion covers."""
    kept: list[Suggestion] = []
    # Shorter patterns first: they cover the longer ones.
    for each in sorted(suggestions, key=lambda each: (-each.pattern_type, len(each.name))):
        covering = next((other for other in kept if _covers(other, each)), None)
        if covering is None:
            # An earlier prefix of the same length may need only an operation that this one implies.
            covered = [other for other in kept if _covers(each, other)]
            kept = [other for other in kept if other not in covered]
            is_missing = each.is_missing or any(other.is_missing for other in covered)
            kept.append(each._replace(is_missing=is_missing))
        elif each.is_missing:
            kept[kept.index(covering)] = covering._replace(is_missing=True)
    return kept


def _covers(wide: Suggestion, narrow: Suggestion) -> bool:
    return (
        wide.pattern_type is PatternType.PREFIXED
        and wide[:2] == narrow[:2]
        and narrow.name.startswith(wide.name)
        and (
            wide.operation == narrow.operation
            or wide.operation in IMPLIED_BY.get(narrow.operation, ())
        )
    )


def _common_prefix(names: list[str]) -> str:
    first, last = min(names), max(names)
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    return first[:length]
