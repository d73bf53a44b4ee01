"""The client for applications: producer, consumer and admin on librdkafka, for threads and asyncio.

The package owns the public API: delivery guarantees, workers, the outbox, dead letters and
deduplication. It leaves the protocol to librdkafka.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.client.admin import (
        Admin,
        AsyncAdmin,
        BrokerNode,
        ClusterDescription,
        ConfigEntry,
        ConfigResource,
        ConfigSource,
        GroupDescription,
        GroupListing,
        GroupMember,
        GroupState,
        GroupType,
        IncompleteListing,
        NewTopic,
        OffsetChange,
        PartitionDescription,
        QuotaEntity,
        Reassignment,
        TopicDescription,
    )
    from millstream.client.consumer.async_consumer import AsyncConsumer
    from millstream.client.consumer.consumer import Consumer
    from millstream.client.error import (
        BrokerError,
        BufferFull,
        ClosedError,
        CommitFailed,
        DeliveryError,
        MillstreamError,
        OutcomeUnknown,
        ProducerFenced,
        RegistryError,
        RegistryUnavailable,
        SchemaNotFound,
        SchemaRejected,
        SerializationError,
        TimedOut,
        TransactionAborted,
        UsageError,
    )
    from millstream.client.producer.async_producer import AsyncProducer
    from millstream.client.producer.async_transaction import AsyncTransaction
    from millstream.client.producer.delivery import AsyncDelivery, Delivery
    from millstream.client.producer.producer import Producer
    from millstream.client.producer.transaction import Transaction
    from millstream.client.record import (
        OffsetAndMetadata,
        Partition,
        Record,
        RecordMetadata,
        Records,
    )
    from millstream.client.schema_registry.registry import SchemaRegistry
    from millstream.client.schema_registry.registry_format import (
        RegistryAvroSerde,
        RegistryJsonSerde,
        RegistryProtobufSerde,
    )
    from millstream.client.serde_context import RecordContext
    from millstream.client.serializer import (
        AvroSerializer,
        JsonSerializer,
        MsgspecSerializer,
        ProtobufSerializer,
        Serializer,
    )
    from millstream.client.tracing.consumer_tracing import process_span
    from millstream.client.worker import Breaker, Job, Worker

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncDelivery",
    "AsyncProducer",
    "AsyncTransaction",
    "AvroSerializer",
    "Breaker",
    "BrokerError",
    "BrokerNode",
    "BufferFull",
    "ClosedError",
    "ClusterDescription",
    "CommitFailed",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "Consumer",
    "Delivery",
    "DeliveryError",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "GroupState",
    "GroupType",
    "IncompleteListing",
    "Job",
    "JsonSerializer",
    "MillstreamError",
    "MsgspecSerializer",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetChange",
    "OutcomeUnknown",
    "Partition",
    "PartitionDescription",
    "Producer",
    "ProducerFenced",
    "ProtobufSerializer",
    "QuotaEntity",
    "Reassignment",
    "Record",
    "RecordContext",
    "RecordMetadata",
    "Records",
    "RegistryAvroSerde",
    "RegistryError",
    "RegistryJsonSerde",
    "RegistryProtobufSerde",
    "RegistryUnavailable",
    "SchemaNotFound",
    "SchemaRegistry",
    "SchemaRejected",
    "SerializationError",
    "Serializer",
    "TimedOut",
    "TopicDescription",
    "Transaction",
    "TransactionAborted",
    "UsageError",
    "Worker",
    "process_span",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a command needs few of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("millstream"), name)
