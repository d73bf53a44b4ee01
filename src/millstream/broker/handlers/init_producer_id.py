"""InitProducerId: versions 0 to 5.

Gives an idempotent producer its id: a new one each time, as Kafka does, with epoch 0. The id comes
from a block that was reserved durably, so no two producers ever share one. A transactional id is
answered with COORDINATOR_NOT_AVAILABLE: this broker has no transaction coordinator.
"""

from __future__ import annotations

from millstream.broker.context import Context
from millstream.model.error import BrokerError, ErrorCode
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


async def handle(request: InitProducerIdRequest, context: Context) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not request.transactional_id:
            code = ErrorCode.INVALID_REQUEST
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)
    try:
        producer_id = await context.services.producer_ids.next()
    except BrokerError as error:
        return InitProducerIdResponse(error_code=error.code, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
