"""Waiting on an event loop for a call that goes on if the wait is cancelled."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeVar

_logger = logging.getLogger(__name__)

Result = TypeVar("Result")


async def shielded(call: asyncio.Future[Result]) -> Result:
    """Return the result of a call on a thread.

    A cancelled wait does not end the call. The error of such a call, which has no other way to the
    application, is logged.
    """
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        call.add_done_callback(_log_failure)
        raise


def _log_failure(call: asyncio.Future[Any]) -> None:
    error = None if call.cancelled() else call.exception()
    if error is not None:
        _logger.warning("A call that was cancelled has failed: %s", error)
