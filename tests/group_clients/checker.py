"""The rules for a group whose members process records before they commit, even if members crash.

A record is identified by its partition and offset. Its value is `<key> <number>`; the numbers of a
key increase. A key always belongs to the same partition, so that added partitions move no key. The
ledger lists the acknowledged records by partition, in offset order.

An *ownership* is the time in which one member owns a partition, from `assigned` until `revoked`,
`lost` or the member's death. `violations` reports each broken rule by its first word:

- content: the processed value at an offset is the value that was written there.
- missing: every record of the ledger is processed in some ownership. More than once is allowed.
- order: within an ownership offsets increase by one, without a gap. So the numbers of a key neither
  decrease nor skip.
- start: an ownership starts at 0 or at an offset that a member tried to commit before, and not
  below any offset whose commit was acknowledged before it began. So only records between the last
  commit and a crash are processed again.
- shared: an ownership ends before another one of the same partition begins, unless its member was
  paused and cannot know. Only a paused member may lose a partition.
- fenced: no commit is acknowledged to a member for a partition that was assigned to another
  before the commit was sent.
- backwards: of two acknowledged commits to a partition, the second is not lower if the first was
  acknowledged before the second was sent.

Times are only compared as "acknowledged before sent", and both are taken outside the exchange with
the broker. So a slow member can hide a violation, but never cause a false one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from group_clients.history import Commit, End, History, Ownership

#: The values of each partition, in offset order.
Ledger: TypeAlias = Mapping[int, Sequence[str]]


def violations(ledger: Ledger, histories: Sequence[History]) -> list[str]:
    """Return a sentence for each violation of a rule."""
    by_partition: dict[int, list[Ownership]] = defaultdict(list)
    commits: dict[int, list[Commit]] = defaultdict(list)
    for history in histories:
        for ownership in history.ownerships:
            by_partition[ownership.partition].append(ownership)
        for commit in history.commits:
            for partition in commit.offsets:
                commits[partition].append(commit)
    members = {history.member: history for history in histories}
    found = [f"unowned: {text}" for history in histories for text in history.contradictions]
    for partition in sorted(ledger.keys() | by_partition.keys() | commits.keys()):
        owners = sorted(by_partition[partition], key=lambda each: each.start_at)
        asked = sorted(commits[partition], key=lambda each: each.sent_at)
        found += _check_content(partition, ledger.get(partition, ()), owners)
        found += _check_missing(partition, ledger.get(partition, ()), owners)
        found += _check_order(owners)
        found += _check_start(partition, owners, asked)
        found += _check_shared(owners, members)
        found += _check_fenced(partition, owners, asked)
        found += _check_backwards(partition, asked)
    return found


def _check_content(
    partition: int, written: Sequence[str], owners: Sequence[Ownership]
) -> Iterator[str]:
    for owner in owners:
        for each in owner.processed:
            expected = written[each.offset] if each.offset < len(written) else None
            if each.value != expected:
                yield (
                    f"content: {owner.member} found {each.value!r} at {partition}:{each.offset},"
                    f" where {expected!r} was written"
                )


def _check_missing(
    partition: int, written: Sequence[str], owners: Sequence[Ownership]
) -> Iterator[str]:
    processed = {each.offset for owner in owners for each in owner.processed}
    missing = [offset for offset in range(len(written)) if offset not in processed]
    if missing:
        yield f"missing: {len(missing)} records of {partition} not processed, first {missing[0]}"


def _check_order(owners: Sequence[Ownership]) -> Iterator[str]:
    for owner in owners:
        for one, other in pairwise(owner.processed):
            if other.offset != one.offset + 1:
                yield (
                    f"order: {owner.member} processed {owner.partition}:{other.offset}"
                    f" after {one.offset}"
                )


def _check_start(
    partition: int, owners: Sequence[Ownership], commits: Sequence[Commit]
) -> Iterator[str]:
    for owner in owners:
        if not owner.processed:
            continue
        first = owner.processed[0]
        asked = {each.offsets[partition] for each in commits if each.sent_at < first.at}
        if first.offset not in {0} | asked:
            yield (
                f"start: {owner.member} began at {partition}:{first.offset},"
                " which no member had committed"
            )
        for each in commits:
            if _is_acknowledged_by(each, owner.start_at) and each.offsets[partition] > first.offset:
                yield (
                    f"start: {owner.member} began at {partition}:{first.offset}, though"
                    f" {each.offsets[partition]} was committed by {each.member}"
                )
                break


def _check_shared(owners: Sequence[Ownership], members: Mapping[str, History]) -> Iterator[str]:
    for place, owner in enumerate(owners):
        history = members[owner.member]
        if (
            owner.end is End.LOST
            and owner.end_at is not None
            and not history.was_paused_within(owner.start_at, owner.end_at)
        ):
            yield f"shared: {owner.member} lost {owner.partition} though it was never paused"
        for later in owners[place + 1 :]:
            if not owner.is_over_by(later.start_at) and not history.was_paused_within(
                owner.start_at, later.start_at
            ):
                yield (
                    f"shared: {later.member} was assigned {owner.partition}, which"
                    f" {owner.member} still owned"
                )


def _check_fenced(
    partition: int, owners: Sequence[Ownership], commits: Sequence[Commit]
) -> Iterator[str]:
    for commit in commits:
        before = [each for each in owners if each.start_at < commit.sent_at]
        if commit.is_acknowledged and before and before[-1].member != commit.member:
            yield (
                f"fenced: {commit.member} committed {partition}:{commit.offsets[partition]}"
                f" after the partition was assigned to {before[-1].member}"
            )


def _check_backwards(partition: int, commits: Sequence[Commit]) -> Iterator[str]:
    """Check the commits of one partition, given in the order of sending."""
    acknowledged = [each for each in commits if each.is_acknowledged]
    in_order = sorted(acknowledged, key=lambda each: each.answered_at or 0)
    highest: Commit | None = None
    place = 0
    for commit in acknowledged:
        while place < len(in_order) and _is_acknowledged_by(in_order[place], commit.sent_at):
            each = in_order[place]
            place += 1
            if highest is None or each.offsets[partition] > highest.offsets[partition]:
                highest = each
        if highest is not None and commit.offsets[partition] < highest.offsets[partition]:
            yield (
                f"backwards: {commit.member} committed {partition}:{commit.offsets[partition]}"
                f" after {highest.member} had committed {highest.offsets[partition]}"
            )


def _is_acknowledged_by(commit: Commit, at: int) -> bool:
    return commit.is_acknowledged and commit.answered_at is not None and commit.answered_at <= at
