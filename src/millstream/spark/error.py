"""What can go wrong between Spark and the brokers. Each is a sentence for a person."""

from __future__ import annotations

import logging
from contextlib import ContextDecorator
from types import TracebackType
from typing import Final

from millstream.protocol.error import ConnectionLost as ConnectionLost
from millstream.protocol.error import ProtocolError as ProtocolError
from millstream.protocol.error import SettingError as SettingError
from millstream.protocol.error import Unavailable as Unavailable

logger: Final = logging.getLogger("millstream.spark")


class OptionError(SettingError):
    """An option of the source or the sink is unknown, malformed, or contradicts another."""


class UnknownTopic(OptionError):  # noqa: N818 - what the option names
    """A topic that is to be read or written does not exist."""


class DataLoss(ProtocolError):  # noqa: N818 - what happened to the data
    """Records that a query was to read are not there any more."""


class ConciseErrors(ContextDecorator):
    """Has Spark show the sentence of an error of ours, and not the long way to it.

    Spark puts tracebacks before the sentence, with those of all causes; they are logged here for
    debugging instead. Errors that nobody foresaw keep theirs.
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
            logger.debug("what led to it", exc_info=error)
            raise error.with_traceback(None) from None
