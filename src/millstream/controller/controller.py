"""The controller: the one broker that elects leaders and completes reassignments.

Every broker runs a `Controller`; the one whose `controller` key is in the store is active. The key
has the broker's lease, so it expires with the broker, and the other brokers then race for it.

Pure functions (`election`, `reassignment`, `balance`, `decommission`) decide from the image alone.
So a new controller, or one that missed a change, comes to the same result. Every change compares
the record that it was decided on and this controller's key, so a deposed controller can change
nothing.

Owns the task that campaigns and acts, and the set of topics to check. The data path never waits
for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from millstream.controller import decommission, election, reassignment
from millstream.controller.balance import LeaderTally
from millstream.controller.decommission import Decommission
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
from millstream.metadata.store.port import Compare, MetadataStoreError
from millstream.model.sentinel import NO_LEADER
from millstream.model.topic import TopicId

_logger = logging.getLogger(__name__)

UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
#: Pause after an error of the store.
_RETRY_S: Final = 0.5
#: Topics that are checked in one turn of the loop.
_TOPICS_PER_TURN: Final = 200
#: Time between two passes over the replicas of decommissioned brokers.
_DECOMMISSION_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """The broker settings that the controller uses."""

    balances_leaders: bool = True
    balance_interval_s: float = 300.0
    #: Largest share of the partitions that prefer a broker which others may lead.
    imbalance_share_max: float = 0.1


@dataclass(slots=True)
class ControllerStats:
    """Totals of this broker as controller."""

    #: How often this broker became the controller.
    terms: int = 0
    elections: int = 0
    unclean_elections: int = 0
    reassignments_completed: int = 0
    #: Called with the duration of elections: from the decision until all are stored.
    on_elected: Callable[[float], None] = field(default=lambda _: None)


class Controller:
    """One broker's controller, active or not. Event loop only."""

    __slots__ = (
        "_balance_at",
        "_broker_id",
        "_catalog",
        "_checks_all",
        "_checks_decommissioned",
        "_clock",
        "_decommission_at",
        "_guard",
        "_options",
        "_registration",
        "_supervisor",
        "_task",
        "_topics_to_check",
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
        #: Topics whose partitions may need a decision.
        self._topics_to_check: set[TopicId] = set()
        self._checks_all = True
        self._woken = asyncio.Event()
        #: The condition that holds while this broker is the controller; None while it is not.
        self._guard: Compare | None = None
        self._balance_at = 0.0
        #: Whether decommissioned brokers may have replicas that can be moved.
        self._checks_decommissioned = True
        self._decommission_at = 0.0
        self.stats = ControllerStats()

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._guard is not None

    def start(self) -> None:
        self._catalog.subscribe(self._apply_delta)
        self._task = self._supervisor.start("controller", self._run)

    async def stop(self) -> None:
        """Stop acting. The key expires with the broker's lease."""
        if self._task is not None:
            await self._task.stop()

    def _apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        if delta.brokers or delta.broker_configs:
            # Topic defaults may have changed: `unclean.leader.election.enable` and
            # `min.insync.replicas`.
            self._checks_all = True
        self._note_decommissioned(image, delta)
        for topic in delta.created:
            self._topics_to_check.add(topic.topic_id)
        for _, topic in delta.changed:
            self._topics_to_check.add(topic.topic_id)
        if self._guard is not None and image.controller != self._broker_id:
            _logger.info("broker %d is no longer the controller", self._broker_id)
            self._guard = None
        if self._guard is not None or image.controller == NO_LEADER:
            self._woken.set()

    def _note_decommissioned(self, image: ClusterImage, delta: ImageDelta) -> None:
        if delta.brokers or delta.broker_configs:
            self._checks_decommissioned = True
        named = decommission.named(image.default_broker_configs)
        if named and not self._checks_decommissioned:
            touched = [*delta.created, *(topic for pair in delta.changed for topic in pair)]
            self._checks_decommissioned = any(
                not named.isdisjoint(record.replicas)
                for topic in touched
                for record in topic.partitions
            )

    async def _run(self) -> None:
        # A run that failed may have dropped changes that it did not act on.
        self._checks_all = self._checks_decommissioned = True
        while True:
            try:
                if self._guard is None:
                    await self._campaign()
                else:
                    await self._act()
                await self._wait()
            except MetadataStoreError as error:
                _logger.warning("the controller waits for the metadata store: %s", error)
                self._checks_all = self._checks_decommissioned = True
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
            self._checks_all = self._checks_decommissioned = True
            self._balance_at = self._clock.monotonic() + self._options.balance_interval_s
            self._woken.set()

    async def _wait(self) -> None:
        """Wait for a change, or for the time of the next periodic pass."""
        times = [self._balance_at] if self._options.balances_leaders else []
        if self._checks_decommissioned:
            times.append(self._decommission_at)
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
        changes = await self._decide_changes()
        if changes:
            before = self.stats.elections
            await self._store(changes)
            if self.stats.elections > before:
                self.stats.on_elected(self._clock.monotonic() - begin)
        if self._options.balances_leaders and self._clock.monotonic() >= self._balance_at:
            self._balance_at = self._clock.monotonic() + self._options.balance_interval_s
            await self._balance()
        if self._checks_decommissioned and self._clock.monotonic() >= self._decommission_at:
            self._decommission_at = self._clock.monotonic() + _DECOMMISSION_S
            await self._move_decommissioned()

    async def _decide_changes(self) -> list[PartitionChange]:
        image = self._catalog.image
        topics: Iterable[TopicRecord]
        if self._checks_all:
            topics = image.topics.values()
        else:
            found = (image.topic_by_id(topic_id) for topic_id in self._topics_to_check)
            topics = [topic for topic in found if topic is not None]
        self._checks_all = False
        self._topics_to_check = set()
        changes: list[PartitionChange] = []
        directories = image.directories
        async for topic in _in_turns(topics):
            try:
                changes += self._changes_of(topic, image, directories)
            except Exception as error:  # noqa: BLE001  # reported; other topics continue
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
        """Elect preferred leaders of brokers that lead too few of their preferred partitions."""
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
        await self._store(changes)

    async def _move_decommissioned(self) -> None:
        """Start to move replicas off decommissioned brokers."""
        self._checks_decommissioned = False
        image = self._catalog.image
        moves = Decommission(image)
        if not moves.brokers:
            return
        async for topic in _in_turns(image.topics.values()):
            moves.add(topic)
        await self._store(moves.changes())

    def _is_unclean_allowed(self, topic: TopicRecord) -> bool:
        text = topic.configs.get(UNCLEAN_ELECTION)
        if text is None:
            return self._catalog.topic_defaults.unclean_leader_election_enable
        return text.lower() == "true"

    async def _store(self, changes: list[PartitionChange]) -> None:
        """Store changes, many to a transaction; changes that were overtaken are decided again."""
        guard = self._guard
        if not changes or guard is None:
            return
        made = await update_partitions(self._catalog, changes, guard)
        for change, is_made in zip(changes, made, strict=True):
            if is_made:
                self._count(change)
            else:
                self._topics_to_check.add(change.topic_id)
        if self._topics_to_check:
            self._woken.set()

    def _count(self, change: PartitionChange) -> None:
        before, after = change.before, change.after
        if after.leader not in (before.leader, NO_LEADER):
            self.stats.elections += 1
            if not election.is_clean(before, after):
                self.stats.unclean_elections += 1
                _logger.warning(
                    "unclean election: broker %d leads partition %d of topic id %s and may lack"
                    " acknowledged records",
                    after.leader,
                    change.partition,
                    change.topic_id.hex(),
                )
        if reassignment.is_in_progress(before) and not reassignment.is_in_progress(after):
            self.stats.reassignments_completed += 1


async def _in_turns(topics: Iterable[TopicRecord]) -> AsyncIterator[TopicRecord]:
    """Yield topics, and give the loop a turn in between: there may be 100,000."""
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
    """Return the record that the controller would store for a partition, or None to keep it.

    `min_isr` is the topic's `min.insync.replicas`, or None if it is not set. `directories` are
    those of the image."""
    elected = (
        election.elect(
            record,
            image.brokers,
            unclean=unclean,
            leaving=image.leaving,
            min_isr=effective_min_isr(min_isr, record),
            directories=directories,
        )
        or record
    )
    finished = reassignment.complete(elected, image.eligible) or elected
    return None if finished is record else finished
