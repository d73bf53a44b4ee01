"""librdkafka's statistics, for the application's callback."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

#: Called with the statistics of one client; librdkafka's STATISTICS.md lists their keys.
StatisticsCallback: TypeAlias = Callable[[dict[str, Any]], object]

_logger = logging.getLogger(__name__)


def parsing(callback: StatisticsCallback) -> Callable[[str], None]:
    """Return librdkafka's callback: it parses the statistics and calls `callback`.

    An error of `callback` is logged. librdkafka would raise it from any call that polls.
    """

    def receive(text: str) -> None:
        try:
            callback(json.loads(text))
        except Exception:
            _logger.exception("on_statistics=%r raised", callback)

    return receive
