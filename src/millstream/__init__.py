"""Millstream: a distributed message queue that speaks the Apache Kafka wire protocol.

All public names of the client can be imported from here, and `LocalBroker` for tests; those for
Spark from `millstream.spark`. Each is imported when it is first used: a broker needs none of them,
and `import millstream` takes no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from millstream.client.admin import Acl as Acl
    from millstream.client.admin import AclFilter as AclFilter
    from millstream.client.admin import Admin as Admin
    from millstream.client.admin import AsyncAdmin as AsyncAdmin
    from millstream.client.admin import BrokerNode as BrokerNode
    from millstream.client.admin import ClusterDescription as ClusterDescription
    from millstream.client.admin import ConfigEntry as ConfigEntry
    from millstream.client.admin import ConfigResource as ConfigResource
    from millstream.client.admin import ConfigSource as ConfigSource
    from millstream.client.admin import GroupDescription as GroupDescription
    from millstream.client.admin import GroupListing as GroupListing
    from millstream.client.admin import GroupMember as GroupMember
    from millstream.client.admin import GroupState as GroupState
    from millstream.client.admin import GroupType as GroupType
    from millstream.client.admin import IncompleteListing as IncompleteListing
    from millstream.client.admin import NewTopic as NewTopic
    from millstream.client.admin import OffsetChange as OffsetChange
    from millstream.client.admin import Outcome as Outcome
    from millstream.client.admin import PartitionDescription as PartitionDescription
    from millstream.client.admin import QuotaEntity as QuotaEntity
    from millstream.client.admin import Reassignment as Reassignment
    from millstream.client.admin import TopicDescription as TopicDescription
    from millstream.client.connection import SaslMechanism as SaslMechanism
    from millstream.client.connection import SecurityProtocol as SecurityProtocol
    from millstream.client.consumer.async_consumer import AsyncConsumer as AsyncConsumer
    from millstream.client.consumer.consumer import Consumer as Consumer
    from millstream.client.dead_letter import DeadLetter as DeadLetter
    from millstream.client.dead_letter import DeadLetterTopic as DeadLetterTopic
    from millstream.client.dead_letter import Replay as Replay
    from millstream.client.dead_letter import Selection as Selection
    from millstream.client.dedup import ClaimLostError as ClaimLostError
    from millstream.client.dedup import InProgressError as InProgressError
    from millstream.client.dedup import Once as Once
    from millstream.client.dedup import SqlStore as SqlStore
    from millstream.client.dedup import StaleMessageError as StaleMessageError
    from millstream.client.dedup import Store as Store
    from millstream.client.dedup import StoredOffsets as StoredOffsets
    from millstream.client.dedup import StoreError as StoreError
    from millstream.client.dedup import message_id as message_id
    from millstream.client.dedup import once as once
    from millstream.client.dedup import postgres_store as postgres_store
    from millstream.client.dedup import record_once as record_once
    from millstream.client.dedup import sqlite_store as sqlite_store
    from millstream.client.dedup.redis_store import RedisStore as RedisStore
    from millstream.client.error import BrokerError as BrokerError
    from millstream.client.error import BufferFull as BufferFull
    from millstream.client.error import ClosedError as ClosedError
    from millstream.client.error import CommitFailed as CommitFailed
    from millstream.client.error import DeliveryError as DeliveryError
    from millstream.client.error import OutcomeUnknown as OutcomeUnknown
    from millstream.client.error import ProducerFenced as ProducerFenced
    from millstream.client.error import RegistryError as RegistryError
    from millstream.client.error import RegistryUnavailable as RegistryUnavailable
    from millstream.client.error import SchemaNotFound as SchemaNotFound
    from millstream.client.error import SchemaRejected as SchemaRejected
    from millstream.client.error import SerializationError as SerializationError
    from millstream.client.error import TimedOut as TimedOut
    from millstream.client.error import TransactionAborted as TransactionAborted
    from millstream.client.hot_keys.merging import MergeOverflowError as MergeOverflowError
    from millstream.client.hot_keys.merging import OrderedMerge as OrderedMerge
    from millstream.client.hot_keys.merging import PartialTotals as PartialTotals
    from millstream.client.hot_keys.salting import HotKeys as HotKeys
    from millstream.client.hot_keys.salting import SaltedPlacement as SaltedPlacement
    from millstream.client.hot_keys.salting import Salting as Salting
    from millstream.client.outbox import Outbox as Outbox
    from millstream.client.outbox import OutboxSchema as OutboxSchema
    from millstream.client.producer.async_producer import AsyncProducer as AsyncProducer
    from millstream.client.producer.async_transaction import AsyncTransaction as AsyncTransaction
    from millstream.client.producer.delivery import AsyncDelivery as AsyncDelivery
    from millstream.client.producer.delivery import Delivery as Delivery
    from millstream.client.producer.producer import Producer as Producer
    from millstream.client.producer.transaction import Transaction as Transaction
    from millstream.client.record import OffsetAndMetadata as OffsetAndMetadata
    from millstream.client.record import Partition as Partition
    from millstream.client.record import Record as Record
    from millstream.client.record import RecordMetadata as RecordMetadata
    from millstream.client.record import Records as Records
    from millstream.client.schema_registry.registry import SchemaRegistry as SchemaRegistry
    from millstream.client.schema_registry.registry_format import (
        RegistryAvroSerde as RegistryAvroSerde,
    )
    from millstream.client.schema_registry.registry_format import (
        RegistryJsonSerde as RegistryJsonSerde,
    )
    from millstream.client.schema_registry.registry_format import (
        RegistryProtobufSerde as RegistryProtobufSerde,
    )
    from millstream.client.serde_context import RecordContext as RecordContext
    from millstream.client.serializer import AvroSerializer as AvroSerializer
    from millstream.client.serializer import Deserializer as Deserializer
    from millstream.client.serializer import JsonSerializer as JsonSerializer
    from millstream.client.serializer import MsgspecSerializer as MsgspecSerializer
    from millstream.client.serializer import ProtobufSerializer as ProtobufSerializer
    from millstream.client.serializer import Serde as Serde
    from millstream.client.serializer import Serializer as Serializer
    from millstream.client.sql import DatabaseUseError as DatabaseUseError
    from millstream.client.tracing.consumer_tracing import process_span as process_span
    from millstream.client.worker import Breaker as Breaker
    from millstream.client.worker import DeadlinePassed as DeadlinePassed
    from millstream.client.worker import Hint as Hint
    from millstream.client.worker import InvalidPayload as InvalidPayload
    from millstream.client.worker import Job as Job
    from millstream.client.worker import MessageExpired as MessageExpired
    from millstream.client.worker import ProcessDied as ProcessDied
    from millstream.client.worker import Worker as Worker
    from millstream.model.error import MillstreamError as MillstreamError
    from millstream.model.error import UsageError as UsageError
    from millstream.testing.broker import LocalBroker as LocalBroker
    from millstream.testing.error import LocalBrokerError as LocalBrokerError
    from millstream.testing.error import MemberNotFoundError as MemberNotFoundError

    __version__: str

#: The public names, by module.
_NAMES: Final = {
    "client.admin": (
        "Acl",
        "AclFilter",
        "Admin",
        "AsyncAdmin",
        "BrokerNode",
        "ClusterDescription",
        "ConfigEntry",
        "ConfigResource",
        "ConfigSource",
        "GroupDescription",
        "GroupListing",
        "GroupMember",
        "GroupState",
        "GroupType",
        "IncompleteListing",
        "NewTopic",
        "OffsetChange",
        "Outcome",
        "PartitionDescription",
        "QuotaEntity",
        "Reassignment",
        "TopicDescription",
    ),
    "client.connection": ("SaslMechanism", "SecurityProtocol"),
    "client.consumer.async_consumer": ("AsyncConsumer",),
    "client.consumer.consumer": ("Consumer",),
    "client.dead_letter": ("DeadLetter", "DeadLetterTopic", "Replay", "Selection"),
    "client.dedup": (
        "ClaimLostError",
        "InProgressError",
        "Once",
        "SqlStore",
        "StaleMessageError",
        "Store",
        "StoreError",
        "StoredOffsets",
        "message_id",
        "once",
        "postgres_store",
        "record_once",
        "sqlite_store",
    ),
    "client.dedup.redis_store": ("RedisStore",),
    "client.error": (
        "BrokerError",
        "BufferFull",
        "ClosedError",
        "CommitFailed",
        "DeliveryError",
        "OutcomeUnknown",
        "ProducerFenced",
        "RegistryError",
        "RegistryUnavailable",
        "SchemaNotFound",
        "SchemaRejected",
        "SerializationError",
        "TimedOut",
        "TransactionAborted",
    ),
    "client.hot_keys.merging": ("MergeOverflowError", "OrderedMerge", "PartialTotals"),
    "client.hot_keys.salting": ("HotKeys", "SaltedPlacement", "Salting"),
    "client.outbox": ("Outbox", "OutboxSchema"),
    "client.producer.async_producer": ("AsyncProducer",),
    "client.producer.async_transaction": ("AsyncTransaction",),
    "client.producer.delivery": ("AsyncDelivery", "Delivery"),
    "client.producer.producer": ("Producer",),
    "client.producer.transaction": ("Transaction",),
    "client.record": ("OffsetAndMetadata", "Partition", "Record", "RecordMetadata", "Records"),
    "client.schema_registry.registry": ("SchemaRegistry",),
    "client.schema_registry.registry_format": (
        "RegistryAvroSerde",
        "RegistryJsonSerde",
        "RegistryProtobufSerde",
    ),
    "client.serde_context": ("RecordContext",),
    "client.serializer": (
        "AvroSerializer",
        "Deserializer",
        "JsonSerializer",
        "MsgspecSerializer",
        "ProtobufSerializer",
        "Serde",
        "Serializer",
    ),
    "client.sql": ("DatabaseUseError",),
    "client.tracing.consumer_tracing": ("process_span",),
    "client.worker": (
        "Breaker",
        "DeadlinePassed",
        "Hint",
        "InvalidPayload",
        "Job",
        "MessageExpired",
        "ProcessDied",
        "Worker",
    ),
    "model.error": ("MillstreamError", "UsageError"),
    "testing.broker": ("LocalBroker",),
    "testing.error": ("LocalBrokerError", "MemberNotFoundError"),
}
_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        found: Any = version("millstream")
    elif name in _MODULES:
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
        found = getattr(module, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The next access finds it without this function.
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
