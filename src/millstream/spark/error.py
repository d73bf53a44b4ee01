"""The errors of the Spark source and sink. Each message is a sentence for the user."""

from __future__ import annotations

import logging
from contextlib import ContextDecorator
from types import TracebackType

from millstream.protocol.error import ConnectionLost as ConnectionLost
from millstream.protocol.error import ProtocolError as ProtocolError
from millstream.protocol.error import SettingError as SettingError
from millstream.protocol.error import Unavailable as Unavailable

_logger = logging.getLogger(__name__)


class OptionError(SettingError):
    """An option of the source or the sink is unknown, malformed, or contradicts another."""


class UnknownTopic(OptionError):  # noqa: N818 - public name
    """A topic to read or write does not exist."""


class DataLoss(ProtocolError):  # noqa: N818 - public name
    """Records that a query has to read no longer exist."""


class ConciseErrors(ContextDecorator):
    """Removes the traceback from Millstream's errors, so that Spark shows only the message.

    Spark prints the tracebacks of an error and of all its causes before the message. They are
    logged at debug level instead. Unexpected errors keep their traceback.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, ProtocolError):
            _logger.debug("traceback of an error that Spark shows without it", exc_info=error)
            raise error.with_traceback(None) from None
