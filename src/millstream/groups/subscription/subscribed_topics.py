"""The topics in the subscriptions that consumers send as protocol metadata."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from millstream.wire.primitive import DecodeError
from millstream.wire.schema import decode_prefixed


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of all subscriptions; None if any metadata is not a subscription."""
    topics: set[str] = set()
    try:
        for each in metadata:
            topics.update(decode_prefixed(ConsumerProtocolSubscription, each).topics)
    except DecodeError:
        return None
    return frozenset(topics)
