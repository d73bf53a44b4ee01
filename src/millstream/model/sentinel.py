"""Sentinels: values that mean "none" or "unknown" in requests and files, and limits of integers.

Owns every sentinel that more than one module uses. Kafka writes most of them as -1; the name says
which field is missing. A sentinel of a single request or record stays with its schema.
"""

from __future__ import annotations

from typing import Final

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

#: An epoch (of a leader, a producer or a broker) that does not exist or is unknown.
NO_EPOCH: Final = -1
#: The leader of a partition that has none.
NO_LEADER: Final = -1
#: The replica id of a client that is no follower, and "no preferred read replica".
NO_REPLICA: Final = -1
#: An offset that does not exist or is unknown.
NO_OFFSET: Final = -1
#: The timestamp of a batch without records, and a point in time that was never reached.
NO_TIMESTAMP: Final = -1
#: The producer id of batches that are neither idempotent nor transactional.
NO_PRODUCER_ID: Final = -1
#: The sequence number of batches that are neither idempotent nor transactional.
NO_SEQUENCE: Final = -1
#: The timeout of a transaction without one: it takes part in a two-phase commit.
NO_TIMEOUT_MS: Final = INT32_MAX
#: A sequence number wraps to 0 after `SEQUENCE_MODULUS - 1`.
SEQUENCE_MODULUS: Final = 1 << 31

#: The largest distance of a record's offset from its batch's or segment's base offset: an int32.
RELATIVE_OFFSET_MAX: Final = INT32_MAX
