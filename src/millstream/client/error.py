"""The exceptions that the client raises, and the one mapping of librdkafka's errors to them.

    MillstreamError
      UsageError            the call cannot work with its arguments; also a ValueError
        ClosedError         the client is closed
      SerializationError    a key or a value cannot be encoded or decoded
      BufferFull            the buffer had no room for another record within the timeout
      TimedOut              the brokers did not respond in time; also a TimeoutError
      BrokerError           a broker rejected the request, or cannot be reached
        DeliveryError       a record was not appended to its topic
        CommitFailed        offsets were not committed; their records are read again
        TransactionAborted  nothing of the transaction is visible; it can be retried
        ProducerFenced      a newer producer has the transactional id
      RegistryError         a schema registry failed or rejected a request
        RegistryUnavailable   it cannot be reached, or does not let the client in
        SchemaRejected        the schema is invalid or incompatible; also a SerializationError
        SchemaNotFound        there is no such schema; also a SerializationError
      OutcomeUnknown        a commit got no response: it may have happened or may still happen

Other modules call `from_kafka`, `translated` or `settings_error`, and classify codes with the
`is_...` functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from millstream.client.error_page import page_of
from millstream.client.next_step import next_step
from millstream.model.error import MillstreamError as MillstreamError
from millstream.model.error import UsageError as UsageError


class ClosedError(UsageError):
    """The client is closed."""


class SerializationError(MillstreamError):
    """A key or a value cannot be encoded or decoded."""


class BufferFull(MillstreamError):  # noqa: N818
    """Records are sent faster than the brokers accept them, and the buffer has no room left."""


class TimedOut(MillstreamError, TimeoutError):  # noqa: N818
    """The brokers did not respond in time."""


class BrokerError(MillstreamError):
    """`name` is Kafka's name of the error, `code` its number (librdkafka's own are negative)."""

    def __init__(self, sentence: str, name: str = "", code: int = 0) -> None:
        super().__init__(sentence)
        self.name = name
        self.code = code


class DeliveryError(BrokerError):
    """A record was not appended to its topic."""


class CommitFailed(BrokerError):  # noqa: N818
    """Offsets were not committed. Their records are read again, by this member or another one."""


class TransactionAborted(BrokerError):  # noqa: N818
    """The transaction is aborted: read-committed consumers see nothing of it. It can be retried."""


class ProducerFenced(BrokerError):  # noqa: N818
    """A newer producer has the transactional id. This producer can only be closed."""


class OutcomeUnknown(MillstreamError):  # noqa: N818
    """A commit got no response in time: it may have happened, or may still happen.

    Call `commit()` of the same transaction again to learn which. Repeating the transaction's work
    could do it twice.
    """


class RegistryError(MillstreamError):
    """`status` is the HTTP status, `code` the registry's own error code; 0 if there was none."""

    def __init__(self, sentence: str, status: int = 0, code: int = 0) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code


class RegistryUnavailable(RegistryError):  # noqa: N818
    """The registry cannot be reached, or rejects the client's credentials.

    This says nothing about the record. So it is not a SerializationError: a worker retries the
    message and does not make it a dead letter.
    """


class SchemaRejected(RegistryError, SerializationError):  # noqa: N818
    """The registry rejects the schema: it is invalid, or incompatible with the earlier version."""


class SchemaNotFound(RegistryError, SerializationError):  # noqa: N818
    """The registry has no schema with this id, or the subject has no such version."""


_TIMEOUTS: Final = frozenset(
    {KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError.REQUEST_TIMED_OUT}  # noqa: SLF001
)
_UNREACHABLE: Final = _TIMEOUTS | {
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
    KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
    KafkaError._RESOLVE,  # noqa: SLF001
}
_COORDINATOR_PENDING: Final = frozenset(
    {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._WAIT_COORD}  # noqa: SLF001
)
_FENCED: Final = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}  # noqa: SLF001
)
#: A broker rejects the whole batch because of one record. The other records can be sent again.
_REJECTED_BATCHES: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
_MISSING: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
#: The topic or partition does not exist. librdkafka has already retried the lookup for a while.
_REJECTED_TOPICS: Final = frozenset(
    {
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)


def error_of(exception: KafkaException) -> KafkaError:
    """Return the KafkaError that a KafkaException carries."""
    error = exception.args[0] if exception.args else None
    if isinstance(error, KafkaError):
        return error
    return KafkaError(KafkaError._FAIL, str(exception))  # noqa: SLF001


def librdkafka_error(error: KafkaException | SystemError) -> KafkaException:
    """Return the exception of librdkafka. Another SystemError is raised again.

    confluent-kafka sets the exception of a fatal error and then still runs delivery callbacks. For
    these CPython raises a SystemError, whose cause is the fatal error.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, KafkaException):
        found = found.__cause__
    if found is None:
        raise error
    return found


def reason_of(error: KafkaError | KafkaException) -> str:
    """Return the error's text followed by its name, for a message."""
    if isinstance(error, KafkaException):
        error = error_of(error)
    return f"{error.str().rstrip('.')} ({error.name()})"


# What an error code means


def is_timeout(error: KafkaError) -> bool:
    """Whether a request got no response in time."""
    return error.code() in _TIMEOUTS


def is_unreachable(code: int) -> bool:
    """Whether no broker could be reached, or none responded in time."""
    return code in _UNREACHABLE


def is_missing(code: int) -> bool:
    """Whether the topic or partition does not exist."""
    return code in _MISSING


def is_existing(code: int) -> bool:
    """Whether the topic to be created exists."""
    return code == KafkaError.TOPIC_ALREADY_EXISTS


def is_fenced(error: KafkaError) -> bool:
    """Whether a newer producer has the transactional id."""
    return error.code() in _FENCED


def is_retriable(error: KafkaError) -> bool:
    """Whether the same call of a transactional producer can succeed later."""
    if error.fatal() or error.txn_requires_abort():
        return False
    return bool(error.retriable()) or error.code() in _COORDINATOR_PENDING


def is_rejection(code: int) -> bool:
    """Whether brokers reject the record each time it is sent.

    A missing permission does not count: it concerns all records and is fixed without them.
    """
    return code in _REJECTED_BATCHES or code in _REJECTED_TOPICS


def is_of_batch(code: int) -> bool:
    """Whether another record of the same batch may have caused the rejection."""
    return code in _REJECTED_BATCHES


def is_of_topic(code: int) -> bool:
    """Whether creating the topic ends the rejection."""
    return code in _REJECTED_TOPICS


# From librdkafka's errors to exceptions


def from_kafka(
    error: KafkaError | KafkaException, what: str, kind: type[BrokerError] = BrokerError
) -> MillstreamError:
    """Return the exception for librdkafka's error. `what` names the operation that failed."""
    if isinstance(error, KafkaException):
        error = error_of(error)
    step = next_step(error.code())
    made = _made(error, f"{what}: {reason_of(error)}." + (f" {step}" if step else ""), kind)
    page = page_of(error.code())
    if page:
        # Tracebacks show it; the message stays short.
        made.add_note(f"See: millstream docs {page}")
    return made


def _made(error: KafkaError, sentence: str, kind: type[BrokerError]) -> MillstreamError:
    if is_fenced(error):
        return ProducerFenced(sentence, error.name(), error.code())
    if is_timeout(error) and kind is BrokerError:
        return TimedOut(sentence)
    return kind(sentence, error.name(), error.code())


@contextmanager
def translated(what: str, kind: type[BrokerError] = BrokerError) -> Iterator[None]:
    """Raise librdkafka's errors in the block as the client's. `what` names the operation."""
    try:
        yield
    except KafkaException as error:
        raise from_kafka(error, what, kind) from error


def settings_error(error: KafkaException, client: str) -> UsageError:
    """Return the exception for properties that librdkafka rejects. `client` names their owner."""
    reason = error_of(error).str().rstrip(".")
    return UsageError(
        f"The {client}'s settings are wrong: {reason}. Change the option or the entry of "
        "config=... that it names."
    )
