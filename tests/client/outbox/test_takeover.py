"""Whether a claimed batch was sent, decided from the database and from Kafka."""

from __future__ import annotations

import pytest

from millstream.client.outbox.takeover import (
    BatchOutcome,
    ProgressLostError,
    ShardTakeover,
    batch_outcome,
)


@pytest.mark.parametrize(
    ("claimed", "committed", "outcome"),
    [
        (False, None, BatchOutcome.BASELINE),
        (False, 7, BatchOutcome.KNOWN),
        (True, 7, BatchOutcome.SENT),
        (True, 6, BatchOutcome.UNSENT),
    ],
)
def test_the_outcome_of_the_last_batch(
    claimed: bool, committed: int | None, outcome: BatchOutcome
) -> None:
    assert batch_outcome(ShardTakeover("name", 3, 7, claimed), committed) is outcome


@pytest.mark.parametrize(
    ("claimed", "committed"), [(False, 6), (False, 8), (True, None), (True, 5), (True, 8)]
)
def test_a_contradiction_raises(claimed: bool, committed: int | None) -> None:
    with pytest.raises(ProgressLostError, match="outbox settle"):
        batch_outcome(ShardTakeover("name", 3, 7, claimed), committed)
