"""The one way to change the cluster's metadata, on top of the image that `follower` keeps.

Owns the running of changes: planning them on the current image (`topic_change` decides), putting
many into a transaction, and planning again what another change overtook, a bounded number of
times. Does not own the store, and decides nothing about placement.

Every change returns when it is durable in the store and visible in `image`. Cancelling one gives
up waiting for it; it may still happen. Once following has failed, changes end with an error.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

from millstream.env.random import Random
from millstream.env.supervisor import Supervisor
from millstream.metadata import cluster_record as records
from millstream.metadata import large_change, topic_change
from millstream.metadata.cluster_record import BrokerRecord, Configs, TopicRecord
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.metadata.image_updater import ImageUpdater
from millstream.metadata.store.port import (
    Change,
    Compare,
    Condition,
    Delete,
    LeaseId,
    MetadataStore,
    Outcome,
    Put,
    StoreError,
    UnavailableError,
    UncertainError,
)
from millstream.metadata.topic_change import Edit, NewPartitions, NewTopic, Plan, collision_key
from millstream.model.config import TopicConfig
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.map import Map
from millstream.model.sentinel import INT64_MAX
from millstream.model.topic import TopicId

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")
TopicResult: TypeAlias = TopicRecord | BrokerError
#: Plans of one call, each with the place of its result.
_Group: TypeAlias = list[tuple[int, Plan]]

#: Transactions of a large call are at most this big, or as the store allows: few enough for it,
#: small enough that applying one does not hold up the loop.
_CHANGES_PER_TRANSACTION: Final = 500
#: With the size above this keeps what is ahead of the image below what stores keep for watchers.
_TRANSACTIONS_MAX: Final = 64
_ATTEMPTS_MAX: Final = 16
#: Topics of a large call that are planned before others may use the loop.
_PLANS_PER_TURN: Final = 100
#: Partitions that one call may give a topic; the broker's own limit is no higher.
_PARTITIONS_MAX: Final = 10_000


class Catalog(ImageUpdater):
    """Created by `open`, which returns when the image is loaded."""

    __slots__ = ("_dotted", "_random", "_slots", "cluster_id", "topic_defaults")

    def __init__(self, store: MetadataStore, random: Random, topic_defaults: TopicConfig) -> None:
        super().__init__(store)
        self._random = random
        #: What a topic's overrides are laid over when they are checked.
        self.topic_defaults = topic_defaults
        self.cluster_id = ""
        self._slots = asyncio.Semaphore(_TRANSACTIONS_MAX)
        #: Topics with a dot in their name by `collision_key`; the others are their own key.
        self._dotted: dict[str, str] = {}
        self.subscribe(self._index_names)

    @classmethod
    async def open(
        cls,
        store: MetadataStore,
        *,
        supervisor: Supervisor,
        random: Random,
        topic_defaults: TopicConfig,
        cluster_id: str | None = None,
    ) -> Catalog:
        """Load the image and follow the store from there. The store stays the caller's.

        `cluster_id` is the cluster's as the broker knows it: a store that knows no cluster yet is
        then the wrong one, and is left as it is."""
        catalog = cls(store, random, topic_defaults)
        if left := await large_change.sweep(store):
            _logger.info("deleted what %d changes of large topics had left", left)
        await catalog.load()
        catalog.start(supervisor)
        try:
            catalog.cluster_id = await catalog._find_cluster_id(cluster_id)
        except BaseException:
            await catalog.close()
            raise
        return catalog

    @property
    def changes_max(self) -> int:
        """How many changes one transaction may hold, and how many compares."""
        return self.store.changes_max

    # Changes. Those of many topics give one result each, in order, and never raise for one.

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult]:
        claimed: dict[str, str] = {}

        def plan(new: NewTopic) -> Plan:
            self._check_collision(new.name, claimed)
            topic_id = topic_change.new_topic_id(self._random)
            return topic_change.create_topic(
                self.image, new, topic_id, self.topic_defaults, _PARTITIONS_MAX
            )

        return await self._change_each(topics, lambda new: new.name, plan, validate_only)

    async def create_partitions(
        self, requests: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Additions that do not fit into a transaction are made in several."""

        def plan(new: NewPartitions) -> Plan:
            return topic_change.create_partitions(self.image, new, _PARTITIONS_MAX)

        async def change(requests: Sequence[NewPartitions], check: bool) -> list[TopicResult]:
            return await self._change_each(requests, lambda new: new.name, plan, check)

        steps = [large_change.growth(new, self.store.changes_max) for new in requests]
        rounds = max(map(len, steps), default=0)
        if validate_only or rounds <= 1:
            return await change(requests, validate_only)
        results = await change(requests, True)
        for number in range(rounds):
            chosen = [
                index
                for index, result in enumerate(results)
                if number < len(steps[index]) and not isinstance(result, BrokerError)
            ]
            made = await change([steps[index][number] for index in chosen], False)
            for index, result in zip(chosen, made, strict=True):
                results[index] = result
        return results

    async def delete_topics(self, topics: Sequence[str | TopicId]) -> list[TopicResult]:
        """By name or by id. The results are the topics as they were."""

        def plan(wanted: str | TopicId) -> Plan:
            return topic_change.delete_topic(self.image, wanted)

        return await self._change_each(topics, self._topic_name, plan)

    async def alter_topic_configs(
        self, edits: Sequence[tuple[str, Edit]], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Change topics' overrides; edits come from `config_change`."""

        def plan(edit: tuple[str, Edit]) -> Plan:
            return topic_change.alter_configs(self.image, *edit, self.topic_defaults)

        return await self._change_each(edits, lambda edit: edit[0], plan, validate_only)

    async def register_broker(
        self, record: BrokerRecord, lease: LeaseId | None = None
    ) -> BrokerRecord:
        """Put a broker into the cluster for as long as `lease` lives.

        DUPLICATE_BROKER_REGISTRATION while another incarnation of the same id is there.
        """
        key = records.broker_key(record.node_id)
        for _ in range(_ATTEMPTS_MAX):
            present = self.image.brokers.get(record.node_id)
            if present is not None and present.incarnation != record.incarnation:
                break
            expected = Compare(key, 0 if present is None else present.epoch)
            put = Put(key, records.encode_broker(record), lease)
            outcome = await self.transact([expected], [put])
            if outcome is not None:
                return records.decode_broker(record.node_id, put.value, outcome.revision)
        raise _taken(record.node_id, present)

    def check_free(self, node_id: int) -> None:
        """DUPLICATE_BROKER_REGISTRATION if a broker of this number is registered."""
        if (present := self.image.brokers.get(node_id)) is not None:
            raise _taken(node_id, present)

    async def alter_broker_configs(self, node_id: int | None, edit: Edit) -> Configs:
        """Change one broker's run-time settings, or with None those of all; `edit` validates."""
        return await self._alter_configs(records.broker_config_key(node_id), edit)

    async def alter_group_configs(self, group_id: str, edit: Edit) -> Configs:
        """Change what a group sets for itself, be it known or not; `edit` validates."""
        return await self._alter_configs(records.group_config_key(group_id), edit)

    async def alter_client_metrics_configs(self, name: str, edit: Edit) -> Configs:
        """Create, change or delete a subscription to client metrics; `edit` validates."""
        return await self._alter_configs(records.client_metrics_config_key(name), edit)

    async def _alter_configs(self, key: str, edit: Edit) -> Configs:
        for _ in range(_ATTEMPTS_MAX):
            found = await self.store.get(key)
            present: Configs = records.decode_configs(found.value) if found else Map()
            configs = edit(present)
            change = Put(key, records.encode_configs(configs)) if configs else Delete(key)
            if await self.transact([Compare(key, found.revision if found else 0)], [change]):
                return configs
        raise _overtaken(key)

    async def allocate_producer_ids(self, block: int = 1000) -> range:
        """A block of producer ids that nobody else was or will be given.

        COORDINATOR_LOAD_IN_PROGRESS, after which clients ask again, while the store is away."""
        try:
            return await self._allocate_producer_ids(block)
        except (UnavailableError, UncertainError) as error:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error

    async def _allocate_producer_ids(self, block: int) -> range:
        key = records.PRODUCER_IDS_KEY
        for _ in range(_ATTEMPTS_MAX):
            found = await self.store.get(key)
            first = records.decode_next_producer_id(found.value) if found else 0
            if first > INT64_MAX - block:
                raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
            put = Put(key, records.encode_next_producer_id(first + block))
            if await self.transact([Compare(key, found.revision if found else 0)], [put]):
                return range(first, first + block)
        raise _overtaken(key)

    # Running changes.

    async def _change_each(
        self,
        items: Sequence[_T],
        name: Callable[[_T], object],
        plan: Callable[[_T], Plan],
        validate_only: bool = False,
    ) -> list[TopicResult]:
        """Plan and run a change per item, many to a transaction."""
        results: list[TopicResult] = []
        plans: _Group = []
        seen: set[object] = set()
        for index, item in enumerate(items):
            if index % _PLANS_PER_TURN == _PLANS_PER_TURN - 1:
                await asyncio.sleep(0)
            key = name(item)
            try:
                if key in seen:
                    message = "the topic is named more than once in the request"
                    raise BrokerError(ErrorCode.INVALID_REQUEST, message)
                seen.add(key)
                plans.append((index, plan(item)))
                results.append(plans[-1][1].topic)
            except BrokerError as error:
                results.append(error)
        if not validate_only:
            runs = [
                self._run(group, lambda index: plan(items[index]), results)
                for group in _groups(plans, self.store.changes_max)
            ]
            await asyncio.gather(*runs)
        return results

    async def _run(
        self, group: _Group, replan: Callable[[int], Plan], results: list[TopicResult]
    ) -> None:
        """Run one transaction; if it was overtaken, plan its items again and run them singly."""
        for _ in range(_ATTEMPTS_MAX):
            try:
                done = await self._run_once(group, results)
            except StoreError as error:
                _logger.warning("a change of %d topics failed: %s", len(group), error)
                is_passing = isinstance(error, UnavailableError | UncertainError)
                code = ErrorCode.REQUEST_TIMED_OUT if is_passing else ErrorCode.KAFKA_STORAGE_ERROR
                failure = BrokerError(code, str(error))
                _set_results(results, group, failure)
                return
            if done:
                return
            group = _planned_again(group, replan, results)
            if len(group) != 1:
                await asyncio.gather(*(self._run([one], replan, results) for one in group))
                return
        _set_results(results, group, _overtaken("the topic"))

    async def _run_once(self, group: _Group, results: list[TopicResult]) -> bool:
        compares = [compare for _, plan in group for compare in plan.compares]
        changes = [change for _, plan in group for change in plan.changes]
        if len(changes) > self.store.changes_max:
            done = await self._make_large(group[0][1])
        else:
            done = await self.transact(compares, changes)
        if done is None:
            return False
        for index, plan in group:
            present = self.image.topics.get(plan.topic.name)
            same = present is not None and present.topic_id == plan.topic.topic_id
            results[index] = present if present is not None and same else plan.topic
        return True

    async def transact(
        self, compares: Sequence[Condition], changes: Sequence[Change]
    ) -> Outcome | None:
        """Run a transaction and see it in the image; None if it was overtaken."""
        async with self._slots:
            self.check_following()
            outcome = await self.store.transact(compares, changes)
            await self.reached(outcome.revision)
        return outcome if outcome.succeeded else None

    async def _make_large(self, plan: Plan) -> Outcome | None:
        async with self._slots:
            self.check_following()
            outcome = await large_change.make(self.store, plan)
            await self.reached(outcome.revision)
        return outcome if outcome.succeeded else None

    async def _find_cluster_id(self, expected: str | None) -> str:
        """The cluster's id; the first broker to ask makes it up."""
        while (found := await self.store.get(records.CLUSTER_KEY)) is None:
            if expected is not None:
                raise StoreError(
                    f"it holds no cluster yet, but the data folder is of cluster {expected}: name"
                    " that cluster's metadata store, or an empty data folder"
                )
            text = base64.urlsafe_b64encode(self._random.randbytes(16)).rstrip(b"=").decode()
            put = Put(records.CLUSTER_KEY, records.encode_cluster(text))
            await self.transact([Compare(records.CLUSTER_KEY, 0)], [put])
        return records.decode_cluster(found.value)

    # Names.

    def _check_collision(self, name: str, claimed: dict[str, str]) -> None:
        key = collision_key(name)
        other = claimed.setdefault(key, name)
        if other == name:
            other = self._dotted.get(key, key if key in self.image.topics else name)
        if other != name:
            raise BrokerError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name[:249]!r} collides with {other}: '.' and '_' count as the same",
            )

    def _index_names(self, image: ClusterImage, delta: ImageDelta) -> None:
        for topic in delta.deleted:
            if "." in topic.name:
                self._dotted.pop(collision_key(topic.name), None)
        for topic in delta.created:
            if "." in topic.name:
                self._dotted[collision_key(topic.name)] = topic.name

    def _topic_name(self, wanted: str | TopicId) -> str | TopicId:
        return wanted if isinstance(wanted, str) else self.image.topic_names.get(wanted, wanted)


def _groups(plans: _Group, changes_max: int) -> Iterator[_Group]:
    """Plans in stretches that make up one transaction each; one that is too large is alone."""
    size_max = min(changes_max, _CHANGES_PER_TRANSACTION)
    group: _Group = []
    size = 0
    for index, plan in plans:
        if group and size + len(plan.changes) > size_max:
            yield group
            group, size = [], 0
        group.append((index, plan))
        size += len(plan.changes)
    if group:
        yield group


def _planned_again(
    group: _Group, replan: Callable[[int], Plan], results: list[TopicResult]
) -> _Group:
    again: _Group = []
    for index, _ in group:
        try:
            again.append((index, replan(index)))
        except BrokerError as error:
            results[index] = error
    return again


def _set_results(results: list[TopicResult], group: _Group, result: TopicResult) -> None:
    for index, _ in group:
        results[index] = result


def _taken(node_id: int, present: BrokerRecord | None) -> BrokerError:
    place = ""
    if present is not None and present.endpoints:
        place = f" at {present.endpoints[0].host}:{present.endpoints[0].port}"
    return BrokerError(
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        f"another broker with node.id {node_id} is registered{place}: stop it, or give this one a"
        " node.id of its own",
    )


def _overtaken(what: str) -> BrokerError:
    return BrokerError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"{what} kept being changed by others; gave up after {_ATTEMPTS_MAX} attempts",
    )
