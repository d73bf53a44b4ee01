"""An immutable image of the cluster metadata, and the changes that lead to the next image. Pure.

A `ClusterImage` is a value of one revision. `apply` returns the next image and the delta. Maps are
persistent: one changed topic among 100,000 copies a few hundred items, not all. Unknown keys are
ignored, because a newer broker may have put them.

A partition whose topic is not known yet, or that would leave a gap, waits in `waiting` for the
missing key: stores that limit the size of a transaction deliver large topics in pieces.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias, TypeVar

from millstream.metadata import cluster_record as records
from millstream.metadata import security_record
from millstream.metadata.cluster_record import (
    NO_CONFIGS,
    BrokerRecord,
    Configs,
    Endpoint,
    FeatureLevels,
    PartitionRecord,
    TopicRecord,
)
from millstream.metadata.security_record import (
    AclEntry,
    AclResource,
    Credentials,
    QuotaEntity,
    Quotas,
    TokenRecord,
)
from millstream.metadata.store.port import MetadataStoreError, WatchEvent
from millstream.model.map import Map, MapMutation
from millstream.model.sentinel import NO_LEADER
from millstream.model.topic import TopicId, parse_topic_id

_Waiting: TypeAlias = MapMutation[TopicId, Map[int, PartitionRecord]]

_K = TypeVar("_K")
_V = TypeVar("_V")

__all__ = [
    "EMPTY_IMAGE",
    "BrokerRecord",
    "ClusterImage",
    "Endpoint",
    "ImageDelta",
    "PartitionRecord",
    "TopicRecord",
    "apply",
    "difference",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterImage:
    """The cluster metadata at one revision. All lookups are O(1)."""

    #: The store's revision of this image.
    revision: int = 0
    brokers: Map[int, BrokerRecord] = field(default_factory=Map)
    topics: Map[str, TopicRecord] = field(default_factory=Map)
    topic_names: Map[TopicId, str] = field(default_factory=Map)
    #: Dynamic settings per broker, and cluster-wide.
    broker_configs: Map[int, Configs] = field(default_factory=Map)
    default_broker_configs: Configs = NO_CONFIGS
    #: Settings of groups that have any.
    group_configs: Map[str, Configs] = field(default_factory=Map)
    #: Subscriptions to client metrics, by name.
    client_metrics: Map[str, Configs] = field(default_factory=Map)
    #: Broker id of the controller, or NO_LEADER.
    controller: int = NO_LEADER
    #: The store's revision of the controller's key. It changes with every new controller.
    controller_epoch: int = 0
    #: Finalized feature levels.
    features: FeatureLevels = records.NO_FEATURES
    #: Brokers that are shutting down.
    leaving: frozenset[int] = frozenset()
    #: SCRAM credentials of users, by name.
    users: Map[str, Credentials] = field(default_factory=Map)
    acls: Map[AclResource, tuple[AclEntry, ...]] = field(default_factory=Map)
    quotas: Map[QuotaEntity, Quotas] = field(default_factory=Map)
    #: Delegation tokens, by id.
    tokens: Map[str, TokenRecord] = field(default_factory=Map)
    waiting: Map[TopicId, Map[int, PartitionRecord]] = field(default_factory=Map)

    @property
    def eligible(self) -> Collection[int]:
        """Brokers that may get new roles: alive, and not shutting down."""
        return frozenset(self.brokers) - self.leaving if self.leaving else self.brokers

    @property
    def directories(self) -> dict[int, str]:
        """The directory id with which each broker is registered."""
        return {broker_id: broker.directory for broker_id, broker in self.brokers.items()}

    def topic(self, name: str) -> TopicRecord | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> TopicRecord | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, name: str, partition: int) -> PartitionRecord | None:
        topic = self.topics.get(name)
        if topic is None or not 0 <= partition < len(topic.partitions):
            return None
        return topic.partitions[partition]


EMPTY_IMAGE: Final = ClusterImage()


@dataclass(slots=True)
class ImageDelta:
    """The difference between two images. A topic deleted and created again is in both lists."""

    created: list[TopicRecord] = field(default_factory=list)
    deleted: list[TopicRecord] = field(default_factory=list)
    #: Same topic id before and after; partitions or configs differ.
    changed: list[tuple[TopicRecord, TopicRecord]] = field(default_factory=list)
    #: Brokers that registered or changed; None for brokers that are gone.
    brokers: dict[int, BrokerRecord | None] = field(default_factory=dict)
    #: Whether any broker's settings, or the default ones, differ.
    broker_configs: bool = False
    #: Groups whose settings differ.
    group_configs: set[str] = field(default_factory=set)
    #: Whether any subscription to client metrics differs.
    client_metrics: bool = False
    #: Whether the controller changed.
    controller: bool = False
    #: Whether the set of brokers that are shutting down changed.
    leaving: bool = False
    #: Whether feature levels changed.
    features: bool = False
    #: Users whose credentials differ.
    users: set[str] = field(default_factory=set)
    #: Resource patterns whose ACLs differ.
    acls: set[AclResource] = field(default_factory=set)
    #: Entities whose quotas differ.
    quotas: set[QuotaEntity] = field(default_factory=set)
    #: Ids of delegation tokens that differ.
    tokens: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(
            self.created
            or self.deleted
            or self.changed
            or self.brokers
            or self.broker_configs
            or self.group_configs
            or self.client_metrics
            or self.controller
            or self.leaving
            or self.features
            or self.users
            or self.acls
            or self.quotas
            or self.tokens
        )


def apply(
    image: ClusterImage, events: Iterable[WatchEvent], revision: int
) -> tuple[ClusterImage, ImageDelta]:
    """Return the image after `events`, which are all events up to `revision`, and the delta.

    MetadataStoreError if one of them can't be read."""
    step = _Step(image)
    for event in events:
        try:
            step.add(event)
        except ValueError as error:
            raise MetadataStoreError(
                f"metadata key {event.key!r} can't be read: {error}"
            ) from error
    return step.finish(revision)


def difference(old: ClusterImage, new: ClusterImage) -> ImageDelta:
    """Return the difference between two images without a list of events."""
    delta = ImageDelta()
    for name, topic in new.topics.items():
        _compare_topic(delta, old.topics.get(name), topic)
    for name, topic in old.topics.items():
        if name not in new.topics:
            delta.deleted.append(topic)
    for node_id in {*old.brokers, *new.brokers}:
        if old.brokers.get(node_id) != new.brokers.get(node_id):
            delta.brokers[node_id] = new.brokers.get(node_id)
    delta.broker_configs = (
        old.broker_configs != new.broker_configs
        or old.default_broker_configs != new.default_broker_configs
    )
    delta.group_configs = _differing(old.group_configs, new.group_configs)
    delta.client_metrics = old.client_metrics != new.client_metrics
    delta.controller = old.controller != new.controller
    delta.leaving = old.leaving != new.leaving
    delta.features = old.features.levels != new.features.levels
    delta.users = _differing(old.users, new.users)
    delta.acls = _differing(old.acls, new.acls)
    delta.quotas = _differing(old.quotas, new.quotas)
    delta.tokens = _differing(old.tokens, new.tokens)
    return delta


def _differing(old: Mapping[_K, _V], new: Mapping[_K, _V]) -> set[_K]:
    """Return the keys whose values differ, or that only one of the maps has."""
    return {key for key in {*old, *new} if old.get(key) != new.get(key)}


def _compare_topic(delta: ImageDelta, old: TopicRecord | None, new: TopicRecord) -> None:
    if old is None:
        delta.created.append(new)
    elif old.topic_id != new.topic_id:
        delta.deleted.append(old)
        delta.created.append(new)
    elif old.partitions != new.partitions or old.configs != new.configs:
        delta.changed.append((old, new))


class _Step:
    """Collects events before applying them, so that each topic is rebuilt once."""

    __slots__ = (
        "_broker_configs",
        "_brokers",
        "_client_metrics",
        "_configs",
        "_controller",
        "_controller_epoch",
        "_default_configs",
        "_features",
        "_group_configs",
        "_ids",
        "_image",
        "_leaving",
        "_partitions",
        "_security",
        "_shared",
        "_topics",
    )

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._brokers: dict[int, BrokerRecord | None] = {}
        self._broker_configs: dict[int, Configs | None] = {}
        self._default_configs: Configs = image.default_broker_configs
        self._group_configs: dict[str, Configs | None] = {}
        self._client_metrics: dict[str, Configs | None] = {}
        self._controller = image.controller
        self._controller_epoch = image.controller_epoch
        self._features = image.features
        self._leaving: dict[int, bool] = {}
        self._security = _SecurityStep()
        #: The last value of each topic that was put or deleted, without its partitions.
        self._topics: dict[str, TopicRecord | None] = {}
        self._partitions: dict[TopicId, dict[int, PartitionRecord | None]] = {}
        # Most values are equal to many others, and consecutive keys share a topic id.
        self._shared: dict[bytes, PartitionRecord] = {}
        self._configs: dict[Configs, Configs] = {NO_CONFIGS: NO_CONFIGS}
        self._ids: dict[str, TopicId] = {}

    def add(self, event: WatchEvent) -> None:
        key = event.key
        if key.startswith(records.PARTITIONS):
            self._add_partition(event)
        elif key.startswith(records.TOPICS):
            self._add_topic(event)
        elif key.startswith(records.BROKERS):
            node_id = int(key.removeprefix(records.BROKERS))
            self._brokers[node_id] = (
                records.decode_broker(node_id, event.value, event.revision)
                if event.value is not None
                else None
            )
        elif key.startswith(records.BROKER_CONFIGS):
            self._add_broker_configs(event)
        elif key.startswith(records.GROUP_CONFIGS):
            self._group_configs[key.removeprefix(records.GROUP_CONFIGS)] = _configs(event)
        elif key.startswith(records.CLIENT_METRICS_CONFIGS):
            self._client_metrics[key.removeprefix(records.CLIENT_METRICS_CONFIGS)] = _configs(event)
        elif key.startswith(records.LEAVING):
            self._leaving[int(key.removeprefix(records.LEAVING))] = event.value is not None
        elif key == records.CONTROLLER_KEY:
            value = event.value
            self._controller = NO_LEADER if value is None else records.decode_controller(value)
            self._controller_epoch = event.revision
        elif key == records.FEATURES_KEY:
            self._features = (
                records.NO_FEATURES
                if event.value is None
                else records.decode_features(event.value, event.revision)
            )
        else:
            self._security.add(event)

    def _add_broker_configs(self, event: WatchEvent) -> None:
        configs = _configs(event)
        owner = event.key.removeprefix(records.BROKER_CONFIGS)
        if owner == records.DEFAULT_BROKER:
            self._default_configs = configs or NO_CONFIGS
        else:
            self._broker_configs[int(owner)] = configs

    def _add_topic(self, event: WatchEvent) -> None:
        name = event.key[len(records.TOPICS) :]
        if event.value is None:
            self._topics[name] = None
            return
        value = records.decode_topic(event.value)
        configs: Configs = Map(value.configs) if value.configs else NO_CONFIGS
        configs = self._configs.setdefault(configs, configs)
        topic_id = self._topic_id(value.id)
        self._topics[name] = TopicRecord(name, topic_id, (), configs, event.revision)

    def _add_partition(self, event: WatchEvent) -> None:
        _, text, number = event.key.split("/")
        found: PartitionRecord | None = None
        if event.value is not None:
            found = self._shared.get(event.value)
            if found is None:
                found = records.decode_partition(event.value)
                self._shared[event.value] = found
        self._partitions.setdefault(self._topic_id(text), {})[int(number)] = found

    def _topic_id(self, text: str) -> TopicId:
        topic_id = self._ids.get(text)
        if topic_id is None:
            topic_id = self._ids[text] = parse_topic_id(text)
        return topic_id

    def finish(self, revision: int) -> tuple[ClusterImage, ImageDelta]:
        delta = ImageDelta(brokers=self._brokers)
        image = replace(self._image, revision=revision)
        if self._topics or self._partitions:
            image = self._finish_topics(image, delta)
        if self._brokers:
            image = replace(image, brokers=_updated(image.brokers, self._brokers))
        delta.broker_configs = (
            bool(self._broker_configs) or self._default_configs != image.default_broker_configs
        )
        if delta.broker_configs:
            image = replace(
                image,
                broker_configs=_updated(image.broker_configs, self._broker_configs),
                default_broker_configs=self._default_configs,
            )
        if self._group_configs:
            delta.group_configs = set(self._group_configs)
            groups = _updated(image.group_configs, self._group_configs)
            image = replace(image, group_configs=groups)
        if self._client_metrics:
            delta.client_metrics = True
            subscriptions = _updated(image.client_metrics, self._client_metrics)
            image = replace(image, client_metrics=subscriptions)
        delta.controller = self._controller != image.controller
        if self._controller_epoch != image.controller_epoch:
            image = replace(
                image, controller=self._controller, controller_epoch=self._controller_epoch
            )
        if self._features != image.features:
            delta.features = self._features.levels != image.features.levels
            image = replace(image, features=self._features)
        if self._leaving:
            begun = {node_id for node_id, is_leaving in self._leaving.items() if is_leaving}
            leaving = (image.leaving - self._leaving.keys()) | begun
            delta.leaving = leaving != image.leaving
            image = replace(image, leaving=leaving)
        return self._security.finish(image, delta), delta

    def _finish_topics(self, image: ClusterImage, delta: ImageDelta) -> ClusterImage:
        for topic_id in self._partitions:
            name = image.topic_names.get(topic_id)
            if name is not None:
                self._topics.setdefault(name, image.topics[name])
        topics, names = image.topics.mutate(), image.topic_names.mutate()
        waiting = image.waiting.mutate()
        shared: dict[tuple[PartitionRecord, ...], tuple[PartitionRecord, ...]] = {}
        for name, put in self._topics.items():
            old = image.topics.get(name)
            if old is not None and (put is None or put.topic_id != old.topic_id):
                del topics[name], names[old.topic_id]
                delta.deleted.append(old)
                self._partitions.pop(old.topic_id, None)
                waiting.pop(old.topic_id, None)
                old = None
            if put is not None:
                partitions = self._rebuild(put.topic_id, old.partitions if old else (), waiting)
                partitions = shared.setdefault(partitions, partitions)
                new = TopicRecord(name, put.topic_id, partitions, put.configs, put.revision)
                topics[name] = new
                names[new.topic_id] = name
                _compare_topic(delta, old, new)
        for topic_id, changes in self._partitions.items():
            _hold(waiting, topic_id, changes)
        return replace(
            image, topics=topics.finish(), topic_names=names.finish(), waiting=waiting.finish()
        )

    def _rebuild(
        self, topic_id: TopicId, before: tuple[PartitionRecord, ...], waiting: _Waiting
    ) -> tuple[PartitionRecord, ...]:
        """Return the partitions from 0 up to the first gap. Partitions beyond the gap wait."""
        changes = self._partitions.pop(topic_id, None)
        held = waiting.pop(topic_id, None)
        if changes is None and held is None:
            return before
        known: dict[int, PartitionRecord | None] = dict(enumerate(before))
        known.update(held or {})
        known.update(changes or {})
        partitions: list[PartitionRecord] = []
        while (found := known.pop(len(partitions), None)) is not None:
            partitions.append(found)
        if known:
            _hold(waiting, topic_id, known)
        return tuple(partitions)


class _SecurityStep:
    """Collects the events of users, ACLs, quotas and delegation tokens."""

    __slots__ = ("_acls", "_quotas", "_tokens", "_users")

    def __init__(self) -> None:
        self._users: dict[str, Credentials | None] = {}
        self._acls: dict[AclResource, tuple[AclEntry, ...] | None] = {}
        self._quotas: dict[QuotaEntity, Quotas | None] = {}
        self._tokens: dict[str, TokenRecord | None] = {}

    def add(self, event: WatchEvent) -> None:
        key, value = event.key, event.value
        if key.startswith(security_record.ACLS):
            self._acls[security_record.parse_acl_key(key)] = (
                None if value is None else security_record.decode_acls(value)
            )
        elif key.startswith(security_record.USERS):
            self._users[key.removeprefix(security_record.USERS)] = (
                None if value is None else security_record.decode_credentials(value)
            )
        elif key.startswith(security_record.QUOTAS):
            self._quotas[security_record.parse_quota_key(key)] = (
                None if value is None else security_record.decode_quotas(value)
            )
        elif key.startswith(security_record.TOKENS):
            self._tokens[key.removeprefix(security_record.TOKENS)] = (
                None if value is None else security_record.decode_token(value)
            )

    def finish(self, image: ClusterImage, delta: ImageDelta) -> ClusterImage:
        if not (self._users or self._acls or self._quotas or self._tokens):
            return image
        delta.users, delta.acls = set(self._users), set(self._acls)
        delta.quotas, delta.tokens = set(self._quotas), set(self._tokens)
        return replace(
            image,
            users=_updated(image.users, self._users),
            acls=_updated(image.acls, self._acls),
            quotas=_updated(image.quotas, self._quotas),
            tokens=_updated(image.tokens, self._tokens),
        )


def _configs(event: WatchEvent) -> Configs | None:
    return None if event.value is None else records.decode_configs(event.value)


def _hold(
    waiting: _Waiting, topic_id: TopicId, changes: Mapping[int, PartitionRecord | None]
) -> None:
    held = _updated(waiting.get(topic_id, Map()), changes)
    if held:
        waiting[topic_id] = held
    else:
        waiting.pop(topic_id, None)


def _updated(current: Map[_K, _V], changes: Mapping[_K, _V | None]) -> Map[_K, _V]:
    """Return `current` with `changes`; None removes a key."""
    mutation = current.mutate()
    for key, value in changes.items():
        if value is None:
            mutation.pop(key, None)
        else:
            mutation[key] = value
    return mutation.finish()
