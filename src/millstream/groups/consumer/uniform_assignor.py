"""The `uniform` assignor: equally many partitions for every member, and as few moves as possible.

Balance comes first, then stickiness. The guarantees depend on the members' subscriptions:

    subscriptions  members   balance                            moves
    the same       any       no two differ by more than one     the fewest that allow this
    different      up to 24  the smallest sum of squared loads  the fewest that allow this
    different      more      the smallest sum of squared loads  no move that could be undone, alone
                                                                or in exchange for another

If subscriptions differ, members keep their partitions and free partitions go to the least loaded
subscribers. Then partitions move from the most to the least loaded subscriber of each topic, and
along chains of members. Groups of up to `EXACT_MEMBERS_MAX` members also get the fewest moves, by
cancelling negative cycles of the equivalent min-cost flow. The work is bounded: a group with many
thousands of subscriptions may not be balanced perfectly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from millstream.groups.consumer.assignor import Assignment, SubscribedMember
from millstream.model.topic import TopicId

EXACT_MEMBERS_MAX: Final = 24
_BALANCING_ROUNDS_MAX: Final = 16
_IMPROVEMENTS_MAX: Final = 500
#: Members visited while searching for chains: well under a second.
_CHAIN_STEPS_MAX: Final = 1_000_000
_NO_MEMBER: Final = -1

#: Partition first, so that sorting spreads each topic's partitions over its members.
_Partition = tuple[int, TopicId]


def assign_uniformly(
    members: Mapping[str, SubscribedMember], partition_counts: Mapping[TopicId, int]
) -> dict[str, Assignment]:
    """Assign equally many partitions to every member."""
    if not members:
        return {}
    subscriptions = {member.topics for member in members.values()}
    if len(subscriptions) == 1:
        return _assign_equals(
            members, {each: partition_counts[each] for each in subscriptions.pop()}
        )
    return _Balancer(members, partition_counts).result()


def _assign_equals(
    members: Mapping[str, SubscribedMember], partition_counts: Mapping[TopicId, int]
) -> dict[str, Assignment]:
    """Assign partitions to members that all subscribe to the same topics."""
    order = sorted(members)
    quota, extras = divmod(sum(partition_counts.values()), len(order))
    partitions = sorted(
        (partition, topic_id)
        for topic_id, count in partition_counts.items()
        for partition in range(count)
    )
    free = dict.fromkeys(partitions)
    assigned: dict[str, list[_Partition]] = {}
    for member_id in order:
        previous = members[member_id].previous
        owned = sorted(
            (partition, topic_id)
            for topic_id in previous.keys() & partition_counts.keys()
            for partition in previous[topic_id]
            if (partition, topic_id) in free
        )
        # A member that has one more than the quota may keep it: that saves a move.
        is_extra = extras > 0 and len(owned) > quota
        extras -= is_extra
        assigned[member_id] = owned[: quota + is_extra]
        for each in assigned[member_id]:
            del free[each]
    _distribute(list(free), assigned, quota, extras)
    return {member_id: _grouped(assigned[member_id]) for member_id in order}


def _distribute(
    partitions: list[_Partition],
    assigned: dict[str, list[_Partition]],
    quota: int,
    extras: int,
) -> None:
    """Fill every member up to the quota, and `extras` members with one more, in turns."""
    missing: dict[str, int] = {}
    for member_id, owned in assigned.items():
        wanted = quota - len(owned)
        if wanted >= 0 and extras > 0:
            wanted += 1
            extras -= 1
        if wanted > 0:
            missing[member_id] = wanted
    # Topic by topic, so that each topic is spread over many members.
    partitions.sort(key=lambda each: (each[1], each[0]))
    at = 0
    while missing:
        for member_id in list(missing):
            assigned[member_id].append(partitions[at])
            at += 1
            missing[member_id] -= 1
            if not missing[member_id]:
                del missing[member_id]


def _grouped(partitions: Iterable[_Partition]) -> Assignment:
    grouped: dict[TopicId, list[int]] = {}
    for partition, topic_id in partitions:
        grouped.setdefault(topic_id, []).append(partition)
    return {topic_id: frozenset(each) for topic_id, each in sorted(grouped.items())}


class _Balancer:
    """Balances members with different subscriptions. Members are identified by number."""

    __slots__ = ("_held", "_loads", "_order", "_owners", "_previous", "_subscribers", "_topics")

    def __init__(
        self, members: Mapping[str, SubscribedMember], partition_counts: Mapping[TopicId, int]
    ) -> None:
        self._order = sorted(members)
        self._topics = [members[member_id].topics for member_id in self._order]
        self._subscribers: dict[TopicId, list[int]] = {}
        for number, topics in enumerate(self._topics):
            for topic_id in sorted(topics):
                self._subscribers.setdefault(topic_id, []).append(number)
        self._owners = {
            topic_id: [_NO_MEMBER] * partition_counts[topic_id] for topic_id in self._subscribers
        }
        self._loads = [0] * len(self._order)
        #: Per member and topic: the partitions that the member has now.
        self._held: list[dict[TopicId, set[int]]] = [{} for _ in self._order]
        for number, member_id in enumerate(self._order):
            self._keep(number, members[member_id])
        #: The previous owner of each partition. Moving the partition back undoes a move.
        self._previous = {topic_id: list(owners) for topic_id, owners in self._owners.items()}

    def result(self) -> dict[str, Assignment]:
        topics = sorted(self._subscribers, key=lambda each: (len(self._subscribers[each]), each))
        for topic_id in topics:
            self._place_free(topic_id)
        for _ in range(_BALANCING_ROUNDS_MAX):
            if not sum(self._balance_topic(topic_id) for topic_id in topics):
                break
        self._level()
        while self._return_moved() or self._exchange():
            pass
        if len(self._order) <= EXACT_MEMBERS_MAX:
            for _ in range(_IMPROVEMENTS_MAX):
                if not self._improve():
                    break
        return {
            member_id: {
                topic_id: frozenset(partitions)
                for topic_id, partitions in sorted(self._held[number].items())
                if partitions
            }
            for number, member_id in enumerate(self._order)
        }

    def _keep(self, number: int, member: SubscribedMember) -> None:
        for topic_id in sorted(member.previous.keys() & member.topics):
            owners = self._owners[topic_id]
            for partition in member.previous[topic_id]:
                if partition < len(owners) and owners[partition] == _NO_MEMBER:
                    self._assign(topic_id, partition, number)

    def _assign(self, topic_id: TopicId, partition: int, number: int) -> None:
        owners = self._owners[topic_id]
        before = owners[partition]
        if before != _NO_MEMBER:
            self._held[before][topic_id].discard(partition)
            self._loads[before] -= 1
        owners[partition] = number
        self._held[number].setdefault(topic_id, set()).add(partition)
        self._loads[number] += 1

    def _place_free(self, topic_id: TopicId) -> None:
        """Assign the free partitions of a topic to its least loaded subscribers."""
        least = [(self._loads[number], number) for number in self._subscribers[topic_id]]
        heapify(least)
        for partition, owner in enumerate(self._owners[topic_id]):
            if owner == _NO_MEMBER:
                load, number = least[0]
                heapreplace(least, (load + 1, number))
                self._assign(topic_id, partition, number)

    def _balance_topic(self, topic_id: TopicId) -> bool:
        """Balance the topic's subscribers with its partitions; return whether any moved."""
        loads = self._loads
        subscribers = self._subscribers[topic_id]
        has_moved = False
        while True:
            holders = [each for each in subscribers if self._held[each].get(topic_id)]
            giver = max(holders, key=loads.__getitem__, default=_NO_MEMBER)
            taker = min(subscribers, key=loads.__getitem__)
            if giver == _NO_MEMBER or loads[giver] - loads[taker] < 2:
                return has_moved
            _, partition = self._cheapest(topic_id, giver, taker)
            self._assign(topic_id, partition, taker)
            has_moved = True

    def _cheapest(self, topic_id: TopicId, giver: int, taker: int) -> tuple[int, int]:
        """Return the lowest cost, in moves, to move a partition of the topic from `giver` to
        `taker`, and the partition."""
        previous_owners = self._previous[topic_id]
        best = (2, _NO_MEMBER)
        for partition in self._held[giver][topic_id]:
            previous_owner = previous_owners[partition]
            cost = -1 if previous_owner == taker else 1 if previous_owner == giver else 0
            best = min(best, (cost, partition))
            if cost < 0:
                break
        return best

    # Chains: a partition moves from a member to a second one, a partition of another topic from
    # there to a third one, and so on. If no chain leads from any member to one with at least two
    # partitions less, no assignment has a smaller sum of squares (an optimal semi-matching).

    def _level(self) -> None:
        """Move partitions along chains as long as that improves the balance."""
        loads = self._loads
        # Members from which no chain leads to a member with two partitions less. This stays so:
        # every member that they reach is in the set too, and the members that are left to try
        # have no larger loads.
        final: set[int] = set()
        steps_left = _CHAIN_STEPS_MAX
        fullest = [(-load, number) for number, load in enumerate(loads)]
        heapify(fullest)
        while fullest and steps_left > 0:
            load, giver = heappop(fullest)
            if giver in final or -load != loads[giver]:
                continue
            chain, steps = self._chain(giver, final)
            steps_left -= steps
            for topic_id, source, taker in chain:
                self._assign(topic_id, self._cheapest(topic_id, source, taker)[1], taker)
            if chain:
                _, _, last = chain[0]
                heappush(fullest, (-loads[giver], giver))
                heappush(fullest, (-loads[last], last))

    def _chain(self, start: int, final: set[int]) -> tuple[list[tuple[TopicId, int, int]], int]:
        """Return the shortest chain to a member with at least two partitions less, and the number
        of members visited. The chain lists topic, giver and taker, last step first. If it is
        empty, the visited members are added to `final`."""
        wanted = self._loads[start] - 2
        reached_by: dict[int, tuple[TopicId, int]] = {}
        tried: set[TopicId] = set()
        waiting = [start]
        steps = 0
        for giver in waiting:
            for topic_id, held in self._held[giver].items():
                if not held or topic_id in tried:
                    continue
                tried.add(topic_id)
                for taker in self._subscribers[topic_id]:
                    steps += 1
                    if taker == start or taker in reached_by or taker in final:
                        continue
                    reached_by[taker] = (topic_id, giver)
                    if self._loads[taker] <= wanted:
                        return _steps_back(reached_by, taker), steps
                    waiting.append(taker)
        final.update(waiting)
        return [], steps

    def _return_moved(self) -> bool:
        """Move partitions back to their previous owners if the balance allows; return whether any
        moved."""
        has_moved = False
        for topic_id, previous_owners in self._previous.items():
            owners = self._owners[topic_id]
            for partition, previous_owner in enumerate(previous_owners):
                if (
                    previous_owner != _NO_MEMBER
                    and self._loads[owners[partition]] > self._loads[previous_owner]
                ):
                    self._assign(topic_id, partition, previous_owner)
                    has_moved = True
        return has_moved

    def _exchange(self) -> bool:
        """Move partitions back to their previous owners, which give up partitions that are new to
        them; return whether any moved."""
        gained: list[set[tuple[TopicId, int]]] = [set() for _ in self._order]
        moved: list[tuple[TopicId, int]] = []
        for topic_id, previous_owners in self._previous.items():
            for partition, (previous_owner, owner) in enumerate(
                zip(previous_owners, self._owners[topic_id], strict=True)
            ):
                if previous_owner != owner:
                    gained[owner].add((topic_id, partition))
                    if previous_owner != _NO_MEMBER:
                        moved.append((topic_id, partition))
        has_moved = False
        for topic_id, partition in moved:
            owner, previous_owner = (
                self._owners[topic_id][partition],
                self._previous[topic_id][partition],
            )
            fitting = [each for each in gained[previous_owner] if each[0] in self._topics[owner]]
            if owner == previous_owner or not fitting:
                continue
            other_topic_id, other = min(fitting)
            self._assign(topic_id, partition, previous_owner)
            self._assign(other_topic_id, other, owner)
            gained[owner].discard((topic_id, partition))
            gained[previous_owner].discard((other_topic_id, other))
            if self._previous[other_topic_id][other] != owner:
                gained[owner].add((other_topic_id, other))
            has_moved = True
        return has_moved

    # The exact part is a graph of the members and a sink. An edge between two members is a
    # partition that can move, at the price of a move. An edge from the sink to a member lowers the
    # member's load, and an edge to the sink raises it. A cycle with a negative sum improves the
    # assignment; without such a cycle the assignment is optimal.

    def _improve(self) -> bool:
        """Apply one negative cycle; return whether there was one."""
        edges = self._edges()
        cycle = _negative_cycle(len(self._order) + 1, edges)
        for giver, taker in cycle:
            if (step := edges[giver, taker][1]) is not None:
                self._assign(*step, taker)
        return bool(cycle)

    def _edges(self) -> dict[tuple[int, int], tuple[int, tuple[TopicId, int] | None]]:
        """Return the price and the partition of each edge."""
        sink = len(self._order)
        # More than all moves of a cycle together, because balance comes first.
        weight = sink + 2
        edges: dict[tuple[int, int], tuple[int, tuple[TopicId, int] | None]] = {}
        for giver in range(sink):
            edges[sink, giver] = (weight * (1 - 2 * self._loads[giver]), None)
            edges[giver, sink] = (weight * (1 + 2 * self._loads[giver]), None)
            for topic_id, held in self._held[giver].items():
                if not held:
                    continue
                for taker in self._subscribers[topic_id]:
                    known = edges.get((giver, taker))
                    if taker == giver or (known is not None and known[0] < 0):
                        continue
                    cost, partition = self._cheapest(topic_id, giver, taker)
                    if known is None or cost < known[0]:
                        edges[giver, taker] = (cost, (topic_id, partition))
        return edges


def _steps_back(
    reached_by: Mapping[int, tuple[TopicId, int]], end: int
) -> list[tuple[TopicId, int, int]]:
    """Return the steps that lead to a member, last step first: topic, giver and taker."""
    steps: list[tuple[TopicId, int, int]] = []
    while end in reached_by:
        topic_id, giver = reached_by[end]
        steps.append((topic_id, giver, end))
        end = giver
    return steps


def _negative_cycle(
    node_count: int, edges: Mapping[tuple[int, int], tuple[int, object]]
) -> list[tuple[int, int]]:
    """Return the edges of a cycle with a negative sum, by Bellman-Ford; none if there is none."""
    distances = [0] * node_count
    parents = [_NO_MEMBER] * node_count
    priced = [(start, end, price) for (start, end), (price, _) in edges.items()]
    changed = _NO_MEMBER
    for _ in range(node_count):
        changed = _NO_MEMBER
        for start, end, price in priced:
            if distances[start] + price < distances[end]:
                distances[end] = distances[start] + price
                parents[end] = start
                changed = end
        if changed == _NO_MEMBER:
            return []
    for _ in range(node_count):
        # After this many steps back the node is on the cycle, not only reachable from it.
        changed = parents[changed]
    cycle: list[tuple[int, int]] = []
    node = changed
    while not cycle or node != changed:
        cycle.append((parents[node], node))
        node = parents[node]
    return cycle
