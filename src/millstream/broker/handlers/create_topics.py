"""CreateTopics: versions 2 to 7.

A partition count or replication factor of -1 means the broker's default; the client may assign
replicas instead. A default factor that depends on the number of brokers waits until that number is
stable. One request may create up to PARTITIONS_MAX partitions. The response is sent when the topics
are durable and this broker serves them, so `timeout_ms` is not used. From version 5 the response
holds the configs in force, if the client may describe them. From version 6 topics above the
client's quota on mutations are rejected (KIP-599); in earlier versions they are created, and the
client is throttled.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from millstream.broker.audit import change
from millstream.broker.config.resource import describe_topic
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.error_response import DENIAL_MESSAGE, error_rows, failure_message
from millstream.broker.quota.client_throttle import MutationQuota
from millstream.broker.topic import DEFAULT
from millstream.metadata.cluster_record import Configs, TopicRecord
from millstream.metadata.topic_change import NewTopic
from millstream.model.acl import Operation, ResourceType
from millstream.model.config import definitions
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from millstream.wire.messages.describe_quorum import METADATA_TOPIC

#: Maximum number of partitions that one request may create, over all its topics; Kafka's limit.
PARTITIONS_MAX = 10_000

_Row = CreateTopicsResponse.Topic
_CONFIGS_SINCE = 5
_STRICT_QUOTA_SINCE = 6
#: Topics handled before the loop serves other clients.
_TOPICS_AT_ONCE = 200


async def handle(request: CreateTopicsRequest, context: Context) -> CreateTopicsResponse:
    quota = MutationQuota(context, strict_since=_STRICT_QUOTA_SINCE)
    rows, planned = await _plan_all(request, context, quota)
    results = await context.services.topics.create(
        [new for _, new in planned], validate_only=request.validate_only
    )
    described: dict[tuple[Configs, int], list[_Row.Config]] = {}
    for (row, _), result in zip(planned, results, strict=True):
        if isinstance(result, BrokerError):
            _reject(row, result)
            continue
        row.topic_id = bytes(16) if request.validate_only else result.topic_id
        if not context.shows(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, row.name):
            row.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            row.configs = []
            continue
        row.num_partitions = len(result.partitions)
        row.replication_factor = len(result.partitions[0].replicas)
        if context.version >= _CONFIGS_SINCE:
            # Besides its overrides, a topic's configs depend on its replicas.
            key = (result.configs, row.replication_factor)
            if key not in described:
                described[key] = _describe_configs(result, context)
            row.configs = described[key]
    return CreateTopicsResponse(topics=rows, throttle_time_ms=quota.throttle_ms)


def _error_response(
    request: CreateTopicsRequest, context: Context, code: ErrorCode
) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=error_rows(
            _Row, request.topics, ["name"], error_code=code, error_message=failure_message(code)
        )
    )


API: Final = ApiEntry(
    CreateTopicsRequest,
    CreateTopicsResponse,
    versions=(2, 7),
    handle=handle,
    audit=change.topics_created,
    error_response=_error_response,
    access=(
        Right(Operation.CREATE, ResourceType.CLUSTER, "to create any topic"),
        Right(Operation.CREATE, ResourceType.TOPIC, "without Create on the cluster"),
        Right(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "to see the configs"),
    ),
)


async def _plan_all(
    request: CreateTopicsRequest, context: Context, quota: MutationQuota
) -> tuple[list[_Row], list[tuple[_Row, NewTopic]]]:
    """Return a row for each topic, and the topics to create with their rows. Rows of rejected
    topics have their error."""
    counts = Counter(topic.name for topic in request.topics)
    rows: list[_Row] = []
    planned: list[tuple[_Row, NewTopic]] = []
    remaining = PARTITIONS_MAX
    creates_all = context.holds_cluster(Operation.CREATE)
    for topic in {topic.name: topic for topic in request.topics}.values():
        if len(rows) % _TOPICS_AT_ONCE == _TOPICS_AT_ONCE - 1:
            await asyncio.sleep(0)
        row = _Row(name=topic.name)
        rows.append(row)
        try:
            if counts[topic.name] > 1:
                raise BrokerError(
                    ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is named more than once"
                )
            if topic.name == METADATA_TOPIC:
                raise BrokerError(
                    ErrorCode.INVALID_REQUEST, f"{topic.name} is no topic for clients"
                )
            if not creates_all and not context.allows(
                Operation.CREATE, ResourceType.TOPIC, topic.name
            ):
                raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, DENIAL_MESSAGE)
            new = await _plan(topic, context)
            remaining -= len(new.assignment)
            if remaining < 0:
                raise BrokerError(
                    ErrorCode.POLICY_VIOLATION,
                    f"one request may create up to {PARTITIONS_MAX} partitions",
                )
            quota.take(len(new.assignment))
            planned.append((row, new))
        except BrokerError as error:
            _reject(row, error)
    return rows, planned


async def _plan(topic: CreateTopicsRequest.Topic, context: Context) -> NewTopic:
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"{config.name} has no value")
        configs[config.name] = config.value
    context.services.topics.validate_name(topic.name)
    if not topic.assignments:
        return await context.services.topics.plan(
            topic.name, topic.num_partitions, topic.replication_factor, configs
        )
    if topic.num_partitions != DEFAULT or topic.replication_factor != DEFAULT:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            "partition count and replication factor must be -1 where replicas are assigned",
        )
    assigned = {each.partition_index: tuple(each.broker_ids) for each in topic.assignments}
    if sorted(assigned) != list(range(len(topic.assignments))):
        raise BrokerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered from 0 without gaps"
        )
    assignment = [assigned[number] for number in range(len(assigned))]
    context.services.topics.check_brokers(assignment)
    return NewTopic(topic.name, assignment, configs)


def _reject(row: _Row, error: BrokerError) -> None:
    row.error_code = error.code
    row.error_message = error.message
    row.configs = []


def _describe_configs(topic: TopicRecord, context: Context) -> list[_Row.Config]:
    found = (describe_topic(topic, definition, context) for definition in definitions.values())
    return [
        _Row.Config(name=each.definition.name, value=each.text, config_source=each.source)
        for each in found
    ]
