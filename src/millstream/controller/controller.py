"""The controller: the one broker that elects leaders and completes reassignments for all.

Every broker runs one of these; the one whose `controller` key is in the store acts. The key hangs
on the broker's own lease, so that it goes when the broker does, and the others then race for it.

What it does is decided by pure functions (`election`, `reassignment`, `balance`, `decommission`)
from the image alone, never from the story of how the cluster got there: a new controller, or one
that missed something, comes to the same result. Every change is compared with the record that it
was decided on, and with this controller's own key, so that one that was deposed without knowing
can change nothing.

Owns the task that campaigns and acts, and which partitions are still to be looked at. Nothing of
the data path waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from millstream.controller import decommission, election, reassignment
from millstream.controller.balance import LeaderTally
from millstream.controller.decommission import Emptying
from millstream.env.clock import Clock
from millstream.env.supervisor import SupervisedTask, Supervisor
from millstream.metadata.catalog import Catalog
from millstream.metadata.cluster_record import PartitionRecord, TopicRecord
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.metadata.min_isr import configured_min_isr, effective_min_isr
from millstream.metadata.partition_change import (
    PartitionChange,
    become_controller,
    update_partitions,
)
from millstream.metadata.registration import Registration
from millstream.metadata.store.port import Compare, StoreError
from millstream.model.sentinel import NO_LEADER
from millstream.model.topic import TopicId

_logger = logging.getLogger(__name__)

UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
#: Rest after the store refused something.
_RETRY_S: Final = 0.5
#: Topics looked at between two turns of the loop.
_TOPICS_PER_TURN: Final = 200
#: Time between two looks at what brokers that are emptied still hold.
_EMPTYING_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """What the broker's settings say about the controller's work."""

    balances_leaders: bool = True
    balance_interval_s: float = 300.0
    #: Share of a broker's partitions that others may lead before they are brought back.
    imbalance_share_max: float = 0.1


@dataclass(slots=True)
class ControllerStats:
    """Totals of this broker as controller."""

    #: Times that it became the controller.
    terms: int = 0
    elections: int = 0
    unclean_elections: int = 0
    reassignments_completed: int = 0
    #: Told how long elections took: from the look at the image until all of them were stored.
    on_elected: Callable[[float], None] = field(default=lambda _: None)


class Controller:
    """See the module's text. Event loop only."""

    __slots__ = (
        "_balance_at",
        "_broker_id",
        "_catalog",
        "_clock",
        "_emptying_at",
        "_guard",
        "_must_look_at_all",
        "_must_look_at_emptied",
        "_options",
        "_registration",
        "_supervisor",
        "_task",
        "_to_look_at",
        "_woken",
        "stats",
    )

    def __init__(
        self,
        broker_id: int,
        catalog: Catalog,
        registration: Registration,
        clock: Clock,
        options: ControllerOptions,
        supervisor: Supervisor,
    ) -> None:
        self._supervisor = supervisor
        self._broker_id = broker_id
        self._catalog = catalog
        self._registration = registration
        self._clock = clock
        self._options = options
        self._task: SupervisedTask | None = None
        #: Topics whose partitions may need a decision; all of them after a broker came or went.
        self._to_look_at: set[TopicId] = set()
        self._must_look_at_all = True
        self._woken = asyncio.Event()
        #: Holds as long as this broker is the controller; None while it is not.
        self._guard: Compare | None = None
        self._balance_at = 0.0
        #: Whether brokers that are to be emptied may hold something that can begin to move.
        self._must_look_at_emptied = True
        self._emptying_at = 0.0
        self.stats = ControllerStats()

    @property
    def is_active(self) -> bool:
        """Whether this broker believes to be the controller."""
        return self._guard is not None

    def start(self) -> None:
        self._catalog.subscribe(self._apply_delta)
        self._task = self._supervisor.start("controller", self._run)

    async def stop(self) -> None:
        """Act no more. The key goes with the broker's lease."""
        if self._task is not None:
            await self._task.stop()

    def _apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        if delta.brokers or delta.broker_configs:
            # Defaults of topics may have changed: whether unclean elections are allowed, and how
            # many replicas must be in sync.
            self._must_look_at_all = True
        self._look_at_emptied(image, delta)
        for topic in delta.created:
            self._to_look_at.add(topic.topic_id)
        for _, topic in delta.changed:
            self._to_look_at.add(topic.topic_id)
        if self._guard is not None and image.controller != self._broker_id:
            _logger.info("broker %d is no longer the controller", self._broker_id)
            self._guard = None
        if self._guard is not None or image.controller == NO_LEADER:
            self._woken.set()

    def _look_at_emptied(self, image: ClusterImage, delta: ImageDelta) -> None:
        if delta.brokers or delta.broker_configs:
            self._must_look_at_emptied = True
        emptied = decommission.named(image.default_broker_configs)
        if emptied and not self._must_look_at_emptied:
            touched = [*delta.created, *(topic for pair in delta.changed for topic in pair)]
            self._must_look_at_emptied = any(
                not emptied.isdisjoint(record.replicas)
                for topic in touched
                for record in topic.partitions
            )

    async def _run(self) -> None:
        # A run that failed may have taken note of changes that it did not act on.
        self._must_look_at_all = self._must_look_at_emptied = True
        while True:
            try:
                if self._guard is None:
                    await self._campaign()
                else:
                    await self._act()
                await self._rest()
            except StoreError as error:
                _logger.warning("the controller's work is held up: %s", error)
                self._must_look_at_all = self._must_look_at_emptied = True
                await asyncio.sleep(_RETRY_S)

    async def _campaign(self) -> None:
        """Become the controller if there is none."""
        self._woken.clear()
        if self._catalog.image.controller != NO_LEADER or self._registration.is_fenced:
            return
        self._guard = await become_controller(
            self._catalog, self._broker_id, self._registration.lease
        )
        if self._guard is not None:
            _logger.info("broker %d is the controller now", self._broker_id)
            self.stats.terms += 1
            self._must_look_at_all = self._must_look_at_emptied = True
            self._balance_at = self._clock.monotonic() + self._options.balance_interval_s
            self._woken.set()

    async def _rest(self) -> None:
        """Until something changes or it is time for one of the looks now and then."""
        times = [self._balance_at] if self._options.balances_leaders else []
        if self._must_look_at_emptied:
            times.append(self._emptying_at)
        if self._guard is None or not times:
            await self._woken.wait()
            return
        left_s = min(times) - self._clock.monotonic()
        try:
            async with asyncio.timeout(max(left_s, 0.0)):
                await self._woken.wait()
        except TimeoutError:
            self._woken.set()

    async def _act(self) -> None:
        self._woken.clear()
        begin = self._clock.monotonic()
        changes = await self._due_changes()
        if changes:
            before = self.stats.elections
            await self._make(changes)
            if self.stats.elections > before:
                self.stats.on_elected(self._clock.monotonic() - begin)
        if self._options.balances_leaders and self._clock.monotonic() >= self._balance_at:
            self._balance_at = self._clock.monotonic() + self._options.balance_interval_s
            await self._balance()
        if self._must_look_at_emptied and self._clock.monotonic() >= self._emptying_at:
            self._emptying_at = self._clock.monotonic() + _EMPTYING_S
            await self._empty()

    async def _due_changes(self) -> list[PartitionChange]:
        image = self._catalog.image
        topics: Iterable[TopicRecord]
        if self._must_look_at_all:
            topics = image.topics.values()
        else:
            found = (image.topic_by_id(topic_id) for topic_id in self._to_look_at)
            topics = [topic for topic in found if topic is not None]
        self._must_look_at_all = False
        self._to_look_at = set()
        changes: list[PartitionChange] = []
        directories = image.directories
        async for topic in _in_turns(topics):
            try:
                changes += self._changes_of(topic, image, directories)
            except Exception as error:  # noqa: BLE001  # reported; other topics go on
                self._supervisor.report("controller", error, f"topic {topic.name}")
        return changes

    def _changes_of(
        self, topic: TopicRecord, image: ClusterImage, directories: Mapping[int, str]
    ) -> list[PartitionChange]:
        unclean = self._is_unclean_allowed(topic)
        configured = configured_min_isr(topic, self._catalog.topic_defaults)
        changes: list[PartitionChange] = []
        for number, record in enumerate(topic.partitions):
            after = decide(
                record, image, unclean=unclean, min_isr=configured, directories=directories
            )
            if after is not None:
                changes.append(PartitionChange(topic.topic_id, number, record, after))
        return changes

    async def _balance(self) -> None:
        """Bring brokers that lead too little of what they should back to it."""
        image = self._catalog.image
        if len(image.brokers) == 1:
            return
        tally = LeaderTally()
        async for topic in _in_turns(image.topics.values()):
            for record in topic.partitions:
                tally.add(record)
        changes: list[PartitionChange] = []
        async for topic in _in_turns(image.topics.values()):
            for number, record in enumerate(topic.partitions):
                if tally.share(record.replicas[0]) > self._options.imbalance_share_max:
                    after = election.prefer(record, image.eligible)
                    if after is not None:
                        changes.append(PartitionChange(topic.topic_id, number, record, after))
        await self._make(changes)

    async def _empty(self) -> None:
        """Begin to move what brokers hold that are to hold nothing."""
        self._must_look_at_emptied = False
        image = self._catalog.image
        emptying = Emptying(image)
        if not emptying.emptied:
            return
        async for topic in _in_turns(image.topics.values()):
            emptying.add(topic)
        await self._make(emptying.changes())

    def _is_unclean_allowed(self, topic: TopicRecord) -> bool:
        text = topic.configs.get(UNCLEAN_ELECTION)
        if text is None:
            return self._catalog.topic_defaults.unclean_leader_election_enable
        return text.lower() == "true"

    async def _make(self, changes: list[PartitionChange]) -> None:
        """Store changes, many to a transaction; those that were overtaken are decided again."""
        guard = self._guard
        if not changes or guard is None:
            return
        made = await update_partitions(self._catalog, changes, guard)
        for change, is_made in zip(changes, made, strict=True):
            if is_made:
                self._count(change)
            else:
                self._to_look_at.add(change.topic_id)
        if self._to_look_at:
            self._woken.set()

    def _count(self, change: PartitionChange) -> None:
        before, after = change.before, change.after
        if after.leader not in (before.leader, NO_LEADER):
            self.stats.elections += 1
            if not election.is_clean(before, after):
                self.stats.unclean_elections += 1
                _logger.warning(
                    "unclean election: broker %d leads partition %d of topic id %s though it may"
                    " lack records that were acknowledged",
                    after.leader,
                    change.partition,
                    change.topic_id.hex(),
                )
        if reassignment.is_under_way(before) and not reassignment.is_under_way(after):
            self.stats.reassignments_completed += 1


async def _in_turns(topics: Iterable[TopicRecord]) -> AsyncIterator[TopicRecord]:
    """Topics one by one, while others use the loop in between: there may be 100,000."""
    for number, topic in enumerate(topics, 1):
        yield topic
        if number % _TOPICS_PER_TURN == 0:
            await asyncio.sleep(0)


def decide(
    record: PartitionRecord,
    image: ClusterImage,
    *,
    unclean: bool,
    min_isr: int | None,
    directories: Mapping[int, str],
) -> PartitionRecord | None:
    """What the controller would make of a partition's record, or None if it is right.

    `min_isr` is the topic's `min.insync.replicas`, None where nobody has set it; `directories` are
    those of the image."""
    settled = (
        election.settle(
            record,
            image.brokers,
            unclean=unclean,
            leaving=image.leaving,
            min_isr=effective_min_isr(min_isr, record),
            directories=directories,
        )
        or record
    )
    finished = reassignment.complete(settled, image.eligible) or settled
    return None if finished is record else finished
