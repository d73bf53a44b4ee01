"""The pages of the documentation about errors, for the end of an error's message.

`millstream docs PAGE` opens a page.
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

_PAGE: Final = "errors"
#: By section of the page, the error codes that it explains.
_CODES: Final = {
    "no-connection": (
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
    ),
    "unknown-topic": (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    ),
    "record-too-large": (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
    ),
    "not-enough-replicas": (
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ),
    "fenced": (
        KafkaError._FENCED,  # noqa: SLF001
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    ),
    "commit-failed": (
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
    ),
    "offset-out-of-range": (KafkaError.OFFSET_OUT_OF_RANGE,),
}
_SECTIONS: Final = {code: section for section, codes in _CODES.items() for code in codes}
#: Every page that an error can name.
PAGES: Final = tuple(f"{_PAGE}#{section}" for section in _CODES)


def page_of(code: int) -> str:
    """Return the page about an error of librdkafka; empty if none explains it."""
    section = _SECTIONS.get(code)
    return "" if section is None else f"{_PAGE}#{section}"
