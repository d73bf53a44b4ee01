"""Which topics members subscribe to, as they say in the metadata that they send for an assignor."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from millstream.wire.primitive import DecodeError
from millstream.wire.schema import decode_prefixed


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members together; None if any of it is not a subscription."""
    topics: set[str] = set()
    try:
        for each in metadata:
            topics.update(decode_prefixed(ConsumerProtocolSubscription, each).topics)
    except DecodeError:
        return None
    return frozenset(topics)
