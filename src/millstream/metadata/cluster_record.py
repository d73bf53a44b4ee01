"""The records of brokers, topics and partitions, and their keys and values in the store.

Keys and values (JSON; fields at their defaults are left out, unknown ones are ignored):
    cluster                      {"id"}
    brokers/<id>                 {"endpoints": [{"listener_name", "host", "port"}], "rack",
                                  "incarnation", "clean_start", "directory"}   leased
    topics/<name>                {"id", "configs": {name: text}}
    partitions/<topic-id>/<n>    {"replicas", "leader", "leader_epoch", "isr", "adding",
                                  "removing", "partition_epoch", "elr", "last_known_elr",
                                  "directories": [[broker, directory id]]}
    configs/broker/<id>|default  {name: text}
    configs/group/<name>         {name: text}; absent if the group has no settings
    configs/client-metrics/<name> {name: text}; a subscription to client metrics
    producer-ids                 {"next"}
    features                     {name: level}; absent until a level is changed
    unregistered/<id>            {"incarnation"} of the process that was unregistered
    controller                   {"id"}                                        leased
    leaving/<id>                 {}: the broker is shutting down               leased
    pending/<topic-id>           a change of a large topic in progress; see `large_change`
    users/, acls/, quotas/, tokens/  see `security_record`
    login-secret                 see `broker.login.login_secret`; not in the image
Topic ids are in Kafka's text form. A topic exists if its `topics/` key does: partitions are put no
later than it, and deleted no earlier.

Records are immutable and have no cycles, so the garbage collector ignores them. With 100,000
records that keeps its pauses short.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from millstream.model.config import RETIRED
from millstream.model.map import Map
from millstream.model.topic import TopicId, format_topic_id

CLUSTER_KEY: Final = "cluster"
PRODUCER_IDS_KEY: Final = "producer-ids"
CONTROLLER_KEY: Final = "controller"
FEATURES_KEY: Final = "features"
BROKERS: Final = "brokers/"
LEAVING: Final = "leaving/"
UNREGISTERED: Final = "unregistered/"
TOPICS: Final = "topics/"
PARTITIONS: Final = "partitions/"
BROKER_CONFIGS: Final = "configs/broker/"
GROUP_CONFIGS: Final = "configs/group/"
CLIENT_METRICS_CONFIGS: Final = "configs/client-metrics/"
DEFAULT_BROKER: Final = "default"


Configs = Map[str, str]
NO_CONFIGS: Final[Configs] = Map()


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """The address of one listener of a broker."""

    listener_name: str
    host: str
    port: int


class BrokerRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A live broker. `epoch` is the store's revision of its registration."""

    node_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    #: Id of the process: it differs between two starts of a broker.
    incarnation: str = ""
    #: Whether the last stop was clean. Otherwise the broker may have lost acknowledged records.
    clean_start: bool = True
    #: Its directory id; empty in registrations without one.
    directory: str = ""
    epoch: int = -1

    def endpoint(self, listener_name: str) -> Endpoint | None:
        for endpoint in self.endpoints:
            if endpoint.listener_name == listener_name:
                return endpoint
        return None


class PartitionRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """The state of a partition in the cluster. Equal records of partitions are shared."""

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    #: Grows by one with every change of the record.
    partition_epoch: int = 0
    #: Eligible leader replicas (KIP-966): they left the ISR while it was below the minimum, and
    #: their directory in `directories` has every committed record.
    elr: tuple[int, ...] = ()
    #: Replicas that were in the ISR or the ELR since then, but may have lost records.
    last_known_elr: tuple[int, ...] = ()
    #: Broker id and directory id of each replica that is or was in sync, where it is known.
    directories: tuple[tuple[int, str], ...] = ()

    def directory(self, replica: int) -> str:
        """Return the directory id recorded for a replica; empty if there is none."""
        for broker_id, directory in self.directories:
            if broker_id == replica:
                return directory
        return ""


class TopicRecord(msgspec.Struct, frozen=True, gc=False):
    """A topic. `partitions[n]` is partition n."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionRecord, ...]
    #: The topic's overrides; `TopicConfig.from_strings` returns the values in force.
    configs: Configs = NO_CONFIGS
    #: The store's revision of the `topics/` key.
    revision: int = 0


class FeatureLevels(msgspec.Struct, frozen=True, gc=False):
    """Finalized levels by feature. `revision` is the store's revision of the key."""

    levels: Map[str, int] = Map()
    revision: int = 0


NO_FEATURES: Final = FeatureLevels()


class BrokerValue(msgspec.Struct, omit_defaults=True):
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    incarnation: str = ""
    clean_start: bool = True
    directory: str = ""


class TopicValue(msgspec.Struct, omit_defaults=True):
    id: str
    configs: dict[str, str] = {}


_encode = msgspec.json.Encoder().encode
_decode_broker = msgspec.json.Decoder(BrokerValue).decode
_decode_configs = msgspec.json.Decoder(dict[str, str]).decode
_decode_number = msgspec.json.Decoder(dict[str, int]).decode
_decode_text = msgspec.json.Decoder(dict[str, str]).decode
_decode_topic = msgspec.json.Decoder(TopicValue).decode
decode_partition = msgspec.json.Decoder(PartitionRecord).decode


def broker_key(node_id: int) -> str:
    return f"{BROKERS}{node_id}"


def leaving_key(node_id: int) -> str:
    return f"{LEAVING}{node_id}"


def unregistered_key(node_id: int) -> str:
    return f"{UNREGISTERED}{node_id}"


def topic_key(name: str) -> str:
    return TOPICS + name


def partition_key(topic_id: TopicId, partition: int) -> str:
    return f"{PARTITIONS}{format_topic_id(topic_id)}/{partition}"


def broker_config_key(node_id: int | None) -> str:
    """Return the key of a broker's settings; None is the cluster-wide default."""
    return BROKER_CONFIGS + (DEFAULT_BROKER if node_id is None else str(node_id))


def group_config_key(group_id: str) -> str:
    return GROUP_CONFIGS + group_id


def client_metrics_config_key(name: str) -> str:
    return CLIENT_METRICS_CONFIGS + name


def encode_broker(record: BrokerRecord) -> bytes:
    return _encode(
        BrokerValue(
            record.endpoints,
            record.rack,
            record.incarnation,
            record.clean_start,
            record.directory,
        )
    )


def decode_broker(node_id: int, value: bytes, revision: int) -> BrokerRecord:
    found = _decode_broker(value)
    return BrokerRecord(
        node_id=node_id,
        endpoints=found.endpoints,
        rack=found.rack,
        incarnation=found.incarnation,
        clean_start=found.clean_start,
        directory=found.directory,
        epoch=revision,
    )


def encode_topic(topic_id: TopicId, configs: Mapping[str, str]) -> bytes:
    return _encode(TopicValue(format_topic_id(topic_id), dict(configs)))


def decode_topic(value: bytes) -> TopicValue:
    found = _decode_topic(value)
    for name in RETIRED & found.configs.keys():
        del found.configs[name]
    return found


def encode_partition(record: PartitionRecord) -> bytes:
    return _encode(record)


def encode_configs(configs: Mapping[str, str]) -> bytes:
    return _encode(dict(configs))


def decode_configs(value: bytes) -> Configs:
    found = _decode_configs(value)
    for name in RETIRED & found.keys():
        del found[name]
    return Map(found) or NO_CONFIGS


def encode_next_producer_id(number: int) -> bytes:
    return _encode({"next": number})


def decode_next_producer_id(value: bytes) -> int:
    return _decode_number(value)["next"]


def encode_features(levels: Mapping[str, int]) -> bytes:
    return _encode(dict(levels))


def decode_features(value: bytes, revision: int) -> FeatureLevels:
    return FeatureLevels(Map(_decode_number(value)), revision)


def encode_unregistered(incarnation: str) -> bytes:
    return _encode({"incarnation": incarnation})


def decode_unregistered(value: bytes) -> str:
    return _decode_text(value)["incarnation"]


def encode_controller(node_id: int) -> bytes:
    return _encode({"id": node_id})


def decode_controller(value: bytes) -> int:
    return _decode_number(value)["id"]


def encode_cluster(cluster_id: str) -> bytes:
    return _encode({"id": cluster_id})


def decode_cluster(value: bytes) -> str:
    return _decode_text(value)["id"]
