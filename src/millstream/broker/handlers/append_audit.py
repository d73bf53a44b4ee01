"""AppendAudit: version 0. Appends the audit events of another broker to the audit topic.

This API is Millstream's own, and ApiVersions does not list it. It is served on the listener between
brokers only. NOT_LEADER_OR_FOLLOWER or UNKNOWN_TOPIC_OR_PARTITION if this broker does not lead the
topic's partition.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.audit.audit_topic import append_locally
from millstream.broker.context import CloseConnectionError, Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError
from millstream.wire.messages.append_audit import AppendAuditRequest, AppendAuditResponse

_EVENTS_MAX: Final = 5000


def handle(request: AppendAuditRequest, context: Context) -> AppendAuditResponse:
    if context.listener != context.services.config.network.inter_broker_listener:
        raise CloseConnectionError("AppendAudit is for brokers")
    context.require_cluster(Operation.CLUSTER_ACTION)
    if not 0 < len(request.events) <= _EVENTS_MAX:
        raise CloseConnectionError(f"AppendAudit with {len(request.events)} events")
    try:
        append_locally(context.services.replicas, request.events)
    except BrokerError as error:
        return AppendAuditResponse(error_code=error.code)
    return AppendAuditResponse()


API: Final = ApiEntry(
    AppendAuditRequest,
    AppendAuditResponse,
    versions=(0, 0),
    handle=handle,
    access=(Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),),
)
