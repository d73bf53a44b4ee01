from __future__ import annotations

import pytest

from millstream.client.outbox.takeover import ProgressLostError, Tenure, Verdict, judge


@pytest.mark.parametrize(
    ("claimed", "committed", "verdict"),
    [
        (False, None, Verdict.BASELINE),
        (False, 7, Verdict.KNOWN),
        (True, 7, Verdict.SENT),
        (True, 6, Verdict.UNSENT),
    ],
)
def test_what_became_of_the_last_batch(
    claimed: bool, committed: int | None, verdict: Verdict
) -> None:
    assert judge(Tenure("name", 3, 7, claimed), committed) is verdict


@pytest.mark.parametrize(
    ("claimed", "committed"), [(False, 6), (False, 8), (True, None), (True, 5), (True, 8)]
)
def test_what_does_not_fit_together_is_refused(claimed: bool, committed: int | None) -> None:
    with pytest.raises(ProgressLostError, match="outbox settle"):
        judge(Tenure("name", 3, 7, claimed), committed)
