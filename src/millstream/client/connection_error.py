"""Why a client cannot reach its brokers: the last connection error, and the next step for it.

librdkafka reports connection errors apart from the call that fails in the end: that call only times
out. `ConnectionErrors` is librdkafka's `error_cb`. It adds the cause to the error that the
application sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import KafkaError

from millstream.client.error import BrokerError, MillstreamError, TimedOut, is_unreachable

_UNKNOWN: Final = (
    "No broker responded: check that bootstrap_servers names the port of a running broker, and "
    "that security_protocol fits that port ('SSL' for TLS)."
)
_TLS: Final = ("ssl://", "sasl_ssl://")
#: How librdkafka's texts for its own error codes begin.
_LOCAL: Final = "Local: "
_STEPS: Final = {
    KafkaError._RESOLVE: "Check the host name in bootstrap_servers.",  # noqa: SLF001
    KafkaError._SSL: (  # noqa: SLF001
        "Check security_protocol and ssl_cafile: the port may be one without TLS, or its "
        "certificate may be unknown."
    ),
    KafkaError._AUTHENTICATION: (  # noqa: SLF001
        "Check security_protocol, sasl_mechanism, sasl_username and sasl_password."
    ),
    KafkaError._TRANSPORT: (  # noqa: SLF001
        "Check the host and port in bootstrap_servers, and that the broker runs."
    ),
}


class ConnectionErrors:
    """The last connection error of one client.

    `serve` calls librdkafka's poll of a client that is not polled otherwise.
    """

    def __init__(self) -> None:
        self._last: KafkaError | None = None
        self.serve: Callable[[], object] = lambda: None
        #: Called with errors that retrying does not end: wrong credentials.
        self.on_rejected: Callable[[BrokerError], None] = lambda _error: None

    def __call__(self, error: KafkaError) -> None:
        """Receive an error from librdkafka."""
        if error.code() in _STEPS:
            self._last = error
        if is_rejection(error):
            sentence = f"Connecting: the broker rejected the client. {self.advice()}"
            self.on_rejected(BrokerError(sentence, error.name(), error.code()))

    def advice(self) -> str:
        """Return the last error and what to do about it, as sentences."""
        if self._last is None:
            return _UNKNOWN
        reason, code = self._last.str().rstrip("."), self._last.code()
        is_transport = code == KafkaError._TRANSPORT  # noqa: SLF001
        if is_transport and reason.startswith(_TLS) and "Connect to" not in reason:
            # The connection was made: the port is one without TLS, and ended the handshake.
            code = KafkaError._SSL  # noqa: SLF001
        return f"The last error: {reason}. {_STEPS[code]}"

    def explain(self, error: MillstreamError) -> None:
        """Add the cause to the message of an error, if the brokers could not be reached."""
        if isinstance(error, TimedOut) or (
            isinstance(error, BrokerError) and is_unreachable(error.code)
        ):
            self.serve()
            error.args = (f"{error} {self.advice()}", *error.args[1:])

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Add the cause to the errors of the block."""
        try:
            yield
        except MillstreamError as error:
            self.explain(error)
            raise


def is_rejection(error: KafkaError) -> bool:
    """Return whether a broker has rejected the client's login.

    librdkafka reports a connection that is lost during the login with the same code. The reason in
    its text is then one of librdkafka's own, and a retry can succeed."""
    return error.code() == KafkaError._AUTHENTICATION and _LOCAL not in error.str()  # noqa: SLF001


def with_errors(properties: dict[str, Any], errors: ConnectionErrors) -> dict[str, Any]:
    """Return the properties with these errors as librdkafka's callback, unless they have one."""
    return {"error_cb": errors, **properties}
