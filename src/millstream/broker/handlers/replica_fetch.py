"""Fetch from a follower: versions 15 to 18, in which it sends its broker epoch.

`replication/leader/follower_session.py` does the work: it reads appended records, committed or not,
and updates the leader's state of the follower. Older versions cannot tell a restarted broker from
its predecessor, so a follower that uses them is served like a consumer and never joins the ISR.
"""

from __future__ import annotations

from millstream.broker.context import Context
from millstream.model.error import BrokerError, ErrorCode
from millstream.model.reply import Reply, ReplyKind
from millstream.replication.leader.follower_session import RequestLimits
from millstream.wire.messages.fetch import FetchRequest, FetchResponse


def handle(request: FetchRequest, context: Context) -> FetchResponse | Reply[FetchResponse]:
    services = context.services
    try:
        session = services.replicator.sessions.receive(request, context.client_id or "")
    except BrokerError as error:
        services.metrics.api("Fetch").errors[error.code] += 1
        return FetchResponse(error_code=error.code)
    limits = RequestLimits(
        request.max_wait_ms,
        request.min_bytes,
        min(request.max_bytes, services.config.fetch.fetch_max_bytes),
    )
    response = session.collect(limits, is_final=request.max_wait_ms <= 0)
    if response is not None:
        return response
    session_id = session.session_id

    def reject(code: ErrorCode) -> FetchResponse:
        return FetchResponse(session_id=session_id, error_code=code)

    reply: Reply[FetchResponse] = Reply(ReplyKind.REPLICA_FETCH, context.receiver, reject)
    session.wait(limits, reply)
    return reply


def deny(request: FetchRequest) -> FetchResponse:
    """Return the response to a client that is not a broker of the cluster. As in Kafka, each
    partition of the request has the error."""
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    response = FetchResponse()
    if not request.topics:
        response.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    for topic in request.topics:
        rows = [
            FetchResponse.Topic.Partition(
                partition_index=each.partition,
                error_code=code,
                high_watermark=-1,
                last_stable_offset=-1,
                records=b"",
            )
            for each in topic.partitions
        ]
        response.responses.append(
            FetchResponse.Topic(topic=topic.topic, topic_id=topic.topic_id, partitions=rows)
        )
    return response
