"""What can go wrong for an application, as a small tree of exceptions.

    ClientError
      UsageError            the call is wrong, whatever the brokers say; also a ValueError
        ClosedError         the client was closed
      SerializationError    a key or a value could not be turned into bytes, or back
      BufferFull            no room for another record within the time given
      TimedOut              the brokers did not answer in time; also a TimeoutError
      BrokerError           the brokers, or the way to them, refused; `name` is Kafka's word for it
        DeliveryError       a record did not get into its topic
        CommitFailed        offsets were not committed; their records will be read again
        TransactionAborted  nothing of the transaction is visible; it can be tried again
        ProducerFenced      another producer took over the transactional id
      OutcomeUnknown        a commit was not answered: it may have happened or may yet

`from_kafka` is the one place where librdkafka's errors become these.
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException


class ClientError(Exception):
    """Everything that the client raises on its own account."""


class UsageError(ClientError, ValueError):
    """The call cannot work as it was made; the sentence says how it can."""


class ClosedError(UsageError):
    """The client was closed before."""


class SerializationError(ClientError):
    """A key or a value could not be turned into bytes, or bytes not into a value."""


class BufferFull(ClientError):  # noqa: N818
    """Records are sent faster than the brokers take them, and the buffer has no room left."""


class TimedOut(ClientError, TimeoutError):  # noqa: N818
    """The brokers did not answer in the time given."""


class BrokerError(ClientError):
    """`name` is Kafka's word for the error, `code` its number (librdkafka's own are negative)."""

    def __init__(self, sentence: str, name: str = "", code: int = 0) -> None:
        super().__init__(sentence)
        self.name = name
        self.code = code


class DeliveryError(BrokerError):
    """A record did not get into its topic."""


class CommitFailed(BrokerError):  # noqa: N818
    """Offsets were not committed. Their records will be delivered again, here or elsewhere."""


class TransactionAborted(BrokerError):  # noqa: N818
    """Nothing of the transaction is visible to read-committed readers. It can be tried again."""


class ProducerFenced(BrokerError):  # noqa: N818
    """A newer producer has the transactional id. This one can only be closed."""


class OutcomeUnknown(ClientError):  # noqa: N818
    """A commit was not answered in time: it may have happened, or may yet. Call `commit()` of the
    same transaction again to learn which; repeating its work could do it twice."""


_TIMEOUTS: Final = frozenset(
    {KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError.REQUEST_TIMED_OUT}  # noqa: SLF001
)
_FENCED: Final = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}  # noqa: SLF001
)
#: Brokers say this of a whole batch. One of its records is to blame; the others can be sent again.
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
#: There is no such topic or partition. librdkafka has looked for it for a while.
_REJECTED_TOPICS: Final = frozenset(
    {
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)


def error_of(exception: KafkaException) -> KafkaError:
    """The KafkaError that a KafkaException carries."""
    error = exception.args[0] if exception.args else None
    if isinstance(error, KafkaError):
        return error
    return KafkaError(KafkaError._FAIL, str(exception))  # noqa: SLF001


def is_timeout(error: KafkaError) -> bool:
    return error.code() in _TIMEOUTS


def is_fenced(error: KafkaError) -> bool:
    return error.code() in _FENCED


def is_rejection(code: int) -> bool:
    """Whether the record will be rejected again, however often it is sent.

    A missing permission is not among it: it is mended without the records, and concerns them all.
    """
    return code in _REJECTED_BATCHES or code in _REJECTED_TOPICS


def is_of_batch(code: int) -> bool:
    """Whether a rejection may be another record's, one that was in the same batch."""
    return code in _REJECTED_BATCHES


def is_of_topic(code: int) -> bool:
    """Whether a rejection ends once the topic is created."""
    return code in _REJECTED_TOPICS


def from_kafka(
    error: KafkaError | KafkaException, what: str, kind: type[BrokerError] = BrokerError
) -> ClientError:
    """The exception for librdkafka's error; `what` says what was being done."""
    if isinstance(error, KafkaException):
        error = error_of(error)
    sentence = f"{what}: {error.str().rstrip('.')} ({error.name()})."
    if is_fenced(error):
        return ProducerFenced(sentence, error.name(), error.code())
    if is_timeout(error) and kind is BrokerError:
        return TimedOut(sentence)
    return kind(sentence, error.name(), error.code())
