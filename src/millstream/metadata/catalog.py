"""Changes the cluster metadata, on top of the image that `image_updater` keeps.

Plans changes on the current image (`topic_change` decides), stores many in one transaction, and
plans a change again if another one came first, a bounded number of times. Does not own the store,
and does not decide about placement.

A change returns when it is durable in the store and visible in `image`. Cancelling a change stops
the wait; the change may still be stored. Once the image is stale, changes fail.
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
    MetadataStoreError,
    Put,
    TransactResult,
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
#: Plans of one call, each with the index of its result.
_Group: TypeAlias = list[tuple[int, Plan]]

#: Largest size of a transaction, or the store's limit: applying one must not block the loop.
_CHANGES_PER_TRANSACTION: Final = 500
#: With the size above, changes ahead of the image stay below what stores keep for watchers.
_TRANSACTIONS_MAX: Final = 64
_ATTEMPTS_MAX: Final = 16
#: Topics of a large call that are planned in one turn of the loop.
_PLANS_PER_TURN: Final = 100
#: Largest number of partitions that one call may add to a topic.
_PARTITIONS_MAX: Final = 10_000


class Catalog(ImageUpdater):
    """The metadata with their changes. Created by `open`, which loads the image."""

    __slots__ = ("_dotted", "_random", "_slots", "cluster_id", "topic_defaults")

    def __init__(self, store: MetadataStore, random: Random, topic_defaults: TopicConfig) -> None:
        super().__init__(store)
        self._random = random
        #: Defaults of topic settings, for validating overrides.
        self.topic_defaults = topic_defaults
        self.cluster_id = ""
        self._slots = asyncio.Semaphore(_TRANSACTIONS_MAX)
        #: Topics with a dot in their name, by `collision_key`. Other names are their own key.
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
        """Load the image and watch the store from there. The caller still owns the store.

        With `cluster_id`, the id that the broker knows, a store without a cluster is the wrong one:
        this raises MetadataStoreError and changes nothing."""
        catalog = cls(store, random, topic_defaults)
        if left := await large_change.sweep(store):
            _logger.info("deleted the remains of %d interrupted changes of large topics", left)
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
        """Largest number of changes, and of conditions, in one transaction."""
        return self.store.changes_max

    # Changes. Changes of many topics return one result each, in order, and do not raise for one.

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
        """Add partitions to topics, in several transactions if they do not fit into one."""

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
        """Delete topics by name or id; return the deleted topics."""

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
        """Register a broker for as long as `lease` lives.

        DUPLICATE_BROKER_REGISTRATION while another process with this broker id is registered.
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
        """Raise DUPLICATE_BROKER_REGISTRATION if a broker with this id is registered."""
        if (present := self.image.brokers.get(node_id)) is not None:
            raise _taken(node_id, present)

    async def alter_broker_configs(self, node_id: int | None, edit: Edit) -> Configs:
        """Change one broker's dynamic settings, or the cluster-wide ones with None.

        `edit` validates them."""
        return await self._alter_configs(records.broker_config_key(node_id), edit)

    async def alter_group_configs(self, group_id: str, edit: Edit) -> Configs:
        """Change a group's settings, whether the group exists or not; `edit` validates them."""
        return await self._alter_configs(records.group_config_key(group_id), edit)

    async def alter_client_metrics_configs(self, name: str, edit: Edit) -> Configs:
        """Create, change or delete a subscription to client metrics; `edit` validates it."""
        return await self._alter_configs(records.client_metrics_config_key(name), edit)

    async def _alter_configs(self, key: str, edit: Edit) -> Configs:
        configs: Configs = Map()

        def edit_value(value: bytes | None) -> bytes | None:
            nonlocal configs
            configs = edit(Map() if value is None else records.decode_configs(value))
            return records.encode_configs(configs) if configs else None

        await self.alter_key(key, edit_value)
        return configs

    async def alter_key(self, key: str, edit: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the value of a key with what `edit` makes of it; None is an absent key.

        `edit` is called again if another change came first. What it raises changes nothing."""
        self.check_following()
        for _ in range(_ATTEMPTS_MAX):
            found = await self.store.get(key)
            value = edit(None if found is None else found.value)
            if found is None and value is None:
                return
            change = Delete(key) if value is None else Put(key, value)
            if await self.transact([Compare(key, found.revision if found else 0)], [change]):
                return
        raise _overtaken(key)

    async def allocate_producer_ids(self, block: int = 1000) -> range:
        """Allocate a block of producer ids that are never assigned again.

        COORDINATOR_LOAD_IN_PROGRESS, after which clients retry, while the store is unavailable."""
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

    # Running changes

    async def _change_each(
        self,
        items: Sequence[_T],
        name: Callable[[_T], object],
        plan: Callable[[_T], Plan],
        validate_only: bool = False,
    ) -> list[TopicResult]:
        """Plan and store one change per item, many to a transaction."""
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
        """Run one transaction. If another change came first, plan its items again, and store them
        singly."""
        for _ in range(_ATTEMPTS_MAX):
            try:
                done = await self._run_once(group, results)
            except MetadataStoreError as error:
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
    ) -> TransactResult | None:
        """Run a transaction and wait until the image shows it; None if a condition failed."""
        async with self._slots:
            self.check_following()
            outcome = await self.store.transact(compares, changes)
            await self.reached(outcome.revision)
        return outcome if outcome.succeeded else None

    async def _make_large(self, plan: Plan) -> TransactResult | None:
        async with self._slots:
            self.check_following()
            outcome = await large_change.make(self.store, plan)
            await self.reached(outcome.revision)
        return outcome if outcome.succeeded else None

    async def _find_cluster_id(self, expected: str | None) -> str:
        """Return the cluster's id; the first broker creates it."""
        while (found := await self.store.get(records.CLUSTER_KEY)) is None:
            if expected is not None:
                raise MetadataStoreError(
                    f"it has no cluster yet, but the data directory belongs to cluster {expected}:"
                    " name that cluster's metadata store, or an empty data directory"
                )
            text = base64.urlsafe_b64encode(self._random.randbytes(16)).rstrip(b"=").decode()
            put = Put(records.CLUSTER_KEY, records.encode_cluster(text))
            await self.transact([Compare(records.CLUSTER_KEY, 0)], [put])
        return records.decode_cluster(found.value)

    # Topic names

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
    """Group plans into transactions; a plan that is too large is alone."""
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
        f"other changes of {what} came first {_ATTEMPTS_MAX} times; try again",
    )
