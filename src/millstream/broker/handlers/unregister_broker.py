"""UnregisterBroker: version 0. Any broker executes it; see `controller/unregistration`.

As in Kafka, a live broker leaves the cluster and stays out until it is restarted. Unlike in Kafka,
the last live broker is not unregistered (INVALID_REQUEST). A dead broker has no registration here:
the request succeeds if the metadata has anything else about the broker, otherwise the error is
BROKER_ID_NOT_REGISTERED.
"""

from __future__ import annotations

from typing import Final

from millstream.broker.audit import change
from millstream.broker.context import Context
from millstream.broker.dispatch import ApiEntry, Right
from millstream.controller.unregistration import unregister
from millstream.metadata.store.port import MetadataStoreError
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)


async def handle(request: UnregisterBrokerRequest, context: Context) -> UnregisterBrokerResponse:
    context.require_cluster(Operation.ALTER)
    try:
        await unregister(context.services.catalog, request.broker_id)
    except BrokerError as error:
        return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
    except MetadataStoreError as error:
        return UnregisterBrokerResponse(
            error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=str(error)
        )
    return UnregisterBrokerResponse()


API: Final = ApiEntry(
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    versions=(0, 0),
    handle=handle,
    audit=change.broker_unregistered,
    access=(Right(Operation.ALTER, ResourceType.CLUSTER),),
)
