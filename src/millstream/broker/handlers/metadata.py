"""Metadata: versions 0 to 13.

Describes topics by name, by id (from version 10), or all topics. A topic that does not exist is
created if both the broker (`auto.create.topics.enable`) and the client allow it; the response then
waits for it. Its partitions count for the client's quota on mutations: a topic above the quota is
not created, as in Kafka, and clients ask for it again. Brokers have their addresses for the
client's listener. A leader that has just closed its connection to this broker is not named: its
partitions have no leader until the cluster elects one.

A list of all topics leaves out topics that the client may not describe. A client may ask for its
authorized operations on topics, and in versions 8 to 10 on the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Coroutine, Iterable
from typing import Any, Final

from millstream.broker.audit.audited import Change, record_change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.broker.quota.client_throttle import MutationQuota
from millstream.broker.topic import is_internal
from millstream.metadata.cluster_record import TopicRecord
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.sentinel import NO_LEADER
from millstream.model.topic import NO_TOPIC_ID
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse

_Topic = MetadataResponse.Topic

#: Topics described before the loop serves other clients.
_TOPICS_AT_ONCE = 1000
_TOPIC_IDS_SINCE = 12
_ERROR_SINCE = 13
_WITHOUT_OPERATIONS = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_ID)


def handle(
    request: MetadataRequest, context: Context
) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse]:
    topics = context.services.catalog.image.topics
    wanted = request.topics
    if wanted is None or (context.version == 0 and not wanted):
        if len(topics) > _TOPICS_AT_ONCE:
            return _describe_many(request, topics.values(), context)
        shown = [topic for topic in topics.values() if _is_shown(topic, context)]
        return _respond(request, [_describe(topic, context) for topic in shown], context)
    # Each topic once: a small request must not cause a huge response.
    wanted = list({(each.name, each.topic_id): each for each in wanted}.values())
    denied = {
        each.name
        for each in wanted
        if each.name and not context.allows(Operation.DESCRIBE, ResourceType.TOPIC, each.name)
    }
    if _may_create(request, context):
        missing = [
            each.name
            for each in wanted
            if each.name and each.name not in topics and each.name not in denied
        ]
        denied.update(_not_creatable(missing, context))
        missing = [name for name in missing if name not in denied]
        if missing:
            return _create_then_describe(request, wanted, missing, denied, context)
    return _respond(request, [_find(each, denied, context) for each in wanted], context)


def _error_response(
    request: MetadataRequest, context: Context, code: ErrorCode
) -> MetadataResponse | None:
    if request.topics is None and context.version < _ERROR_SINCE:
        # The response has no field for the error: clients would see a cluster without topics.
        return None
    rows = [
        MetadataResponse.Topic(
            error_code=code,
            name=topic.name if context.version >= _TOPIC_IDS_SINCE else topic.name or "",
            topic_id=topic.topic_id,
        )
        for topic in request.topics or ()
    ]
    # The brokers are listed as usual: clients forget brokers that a response leaves out.
    response = respond(context, rows)
    response.error_code = code
    return response


API: Final = ApiEntry(
    MetadataRequest,
    MetadataResponse,
    versions=(0, 13),
    handle=handle,
    error_response=_error_response,
    access=(
        Right(Operation.DESCRIBE, ResourceType.TOPIC),
        Right(Operation.CREATE, ResourceType.CLUSTER, "to create missing topics"),
        Right(Operation.CREATE, ResourceType.TOPIC, "without Create on the cluster"),
        Right(Operation.DESCRIBE, ResourceType.CLUSTER, "to see the authorized operations"),
    ),
)


def _may_create(request: MetadataRequest, context: Context) -> bool:
    return (
        request.allow_auto_topic_creation
        and context.services.config.topics.auto_create_topics_enable
    )


def _not_creatable(names: list[str], context: Context) -> list[str]:
    """Return the topics that the client may not create."""
    if not names or context.holds_cluster(Operation.CREATE):
        return []
    return [
        name for name in names if not context.allows(Operation.CREATE, ResourceType.TOPIC, name)
    ]


async def _create_then_describe(
    request: MetadataRequest,
    wanted: list[MetadataRequest.Topic],
    missing: list[str],
    denied: Container[str],
    context: Context,
) -> MetadataResponse:
    quota = MutationQuota(context, strict_since=0)
    rejected = _charge(missing, context, quota)
    failures = await context.services.topics.create_missing(
        [name for name in missing if name not in rejected]
    )
    for name in missing:
        failure = rejected.get(name) or failures.get(name)
        code = ErrorCode.NONE if failure is None else failure.code
        record_change(context, context.api_name, Change(f"topic:{name}", code, "created when used"))
    rows = []
    for each in wanted:
        row = _find(each, denied, context)
        error = failures.get(each.name or "")
        if error is not None and row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            row.error_code = error.code
        rows.append(row)
    response = _respond(request, rows, context)
    response.throttle_time_ms = quota.throttle_ms
    return response


def _charge(names: Iterable[str], context: Context, quota: MutationQuota) -> dict[str, BrokerError]:
    """Charge the partitions of new topics to the client's quota. Return the topics that cannot be
    created: their names are invalid, or they are above the quota. Internal topics are free."""
    topics = context.services.topics
    rejected: dict[str, BrokerError] = {}
    for name in names:
        try:
            topics.validate_name(name)
            if not is_internal(name):
                quota.take(topics.config.topics.num_partitions)
        except BrokerError as error:
            rejected[name] = error
    return rejected


async def _describe_many(
    request: MetadataRequest, topics: Iterable[TopicRecord], context: Context
) -> MetadataResponse:
    rows: list[_Topic] = []
    for count, topic in enumerate(topics):
        if _is_shown(topic, context):
            rows.append(_describe(topic, context))
        if count % _TOPICS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return _respond(request, rows, context)


def _is_shown(topic: TopicRecord, context: Context) -> bool:
    return context.shows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)


def _respond(request: MetadataRequest, rows: list[_Topic], context: Context) -> MetadataResponse:
    """Return the response, with the authorized operations that the client asked for."""
    if request.include_topic_authorized_operations:
        for row in rows:
            if row.name and row.error_code not in _WITHOUT_OPERATIONS:
                row.topic_authorized_operations = context.authorized_operations(
                    ResourceType.TOPIC, row.name
                )
    response = respond(context, rows)
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.cluster_operations()
    return response


def respond(context: Context, topics: list[_Topic]) -> MetadataResponse:
    """Return the response with these topics, and the brokers that the client can reach."""
    services = context.services
    brokers = []
    for broker in services.brokers:
        endpoint = broker.endpoint(context.listener)
        if endpoint is not None:
            brokers.append(
                MetadataResponse.Broker(
                    node_id=broker.node_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=broker.rack,
                )
            )
    return MetadataResponse(
        brokers=brokers,
        cluster_id=services.catalog.cluster_id,
        # Every broker executes requests for the controller, and the client can reach this one. A
        # client that knows a dead controller may wait for it until its request times out.
        controller_id=services.config.node_id,
        topics=topics,
    )


def _find(wanted: MetadataRequest.Topic, denied: Container[str], context: Context) -> _Topic:
    image = context.services.catalog.image
    if context.version < _TOPIC_IDS_SINCE and (
        wanted.name is None or wanted.topic_id != NO_TOPIC_ID
    ):
        # Versions 10 and 11 have a topic id in the request, but not in the response.
        return _Topic(error_code=ErrorCode.INVALID_REQUEST, name=wanted.name or "")
    if wanted.name is None or wanted.topic_id != NO_TOPIC_ID:
        topic = image.topic_by_id(wanted.topic_id)
        if topic is None:
            return _Topic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=wanted.name, topic_id=wanted.topic_id
            )
        if not context.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
            # As in Kafka the id is known, but not whose it is.
            return _Topic(
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                name=None,
                topic_id=wanted.topic_id,
            )
        return _describe(topic, context)
    if wanted.name in denied:
        return _Topic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=wanted.name)
    topic = image.topic(wanted.name)
    if topic is not None:
        return _describe(topic, context)
    row = _Topic(name=wanted.name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        context.services.topics.validate_name(wanted.name)
    except BrokerError as error:
        row.error_code = error.code
    return row


def _describe(topic: TopicRecord, context: Context) -> _Topic:
    alive = context.services.catalog.image.brokers
    # A client that receives a dead leader retries only after its own timeouts. One that receives
    # no leader requests the metadata again at once.
    not_leading = (NO_LEADER, *context.services.replicator.lost_leaders())
    return _Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[
            _Topic.Partition(
                error_code=(
                    ErrorCode.LEADER_NOT_AVAILABLE
                    if state.leader in not_leading
                    else ErrorCode.NONE
                ),
                partition_index=number,
                leader_id=NO_LEADER if state.leader in not_leading else state.leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                offline_replicas=[each for each in state.replicas if each not in alive],
            )
            for number, state in enumerate(topic.partitions)
        ],
    )
