"""The order example: its generator, its expected outcome, and (with Spark) the whole program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
if str(REPOSITORY) not in sys.path:
    sys.path.append(str(REPOSITORY))

from examples.orders.expected_outcome import ExpectedOutcome, Sum, Window  # noqa: E402
from examples.orders.generator import OPENING_MS, Message, Recipe, rounds  # noqa: E402

SMALL = Recipe(rounds=2, events=600, customers=30)


def test_the_same_seed_gives_the_same_events_and_another_seed_others() -> None:
    assert list(rounds(SMALL)) == list(rounds(SMALL))
    assert list(rounds(SMALL)) != list(rounds(Recipe(seed=2, rounds=2, events=600, customers=30)))


def test_events_arrive_in_order_and_few_customers_send_most() -> None:
    sent = [each for _, orders in rounds(Recipe(events=6000)) for each in orders]
    assert [each.timestamp_ms for each in sent] == sorted(each.timestamp_ms for each in sent)
    busiest = Counter(each.key for each in sent).most_common(40)
    assert sum(count for _, count in busiest) > len(sent) / 2


def test_the_ledger_accounts_for_each_event_once() -> None:
    expected = ExpectedOutcome()
    for customers, orders in rounds(SMALL):
        expected.add(customers, orders)
    parts = (
        len(expected.accepted),
        len(expected.late),
        len(expected.malformed),
        expected.duplicates,
    )
    assert sum(parts) == expected.sent == SMALL.events
    assert all(parts)


def test_the_ledger_by_hand() -> None:
    minute = 60_000

    def order(name: str, event_ms: int, arrival_ms: int, cents: int = 100) -> Message:
        value = (
            f'{{"order_id": "{name}", "customer": "c", "amount_cents": {cents},'
            f' "event_time_ms": {OPENING_MS + event_ms}}}'
        )
        return Message(b"c", value.encode(), OPENING_MS + arrival_ms)

    expected = ExpectedOutcome()
    customers = [Message(b"c", b'{"country": "DE", "tier": "gold"}', OPENING_MS)]
    expected.add(
        customers,
        [
            order("a", 0, 1),
            order("a", 0, 2),
            order("b", 0, 10 * minute),
            order("c", 0, 10 * minute - 1),
            order("d", minute, minute, cents=-1),
            order("e", 20 * minute - 1, 20 * minute),
        ],
    )
    assert list(expected.accepted) == ["a", "c", "e"]
    assert expected.late == ["b"]
    assert len(expected.malformed) == expected.duplicates == 1
    assert expected.windows() == {}
    expected.add([], [order("f", 20 * minute, 20 * minute)])
    assert expected.windows() == {Window(OPENING_MS, "DE"): Sum(2, 200)}


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_whole_pipeline_accounts_for_every_event(tmp_path: Path) -> None:
    picture = tmp_path / "orders.png"
    arguments = ["--events", "600", "--rounds", "2", "--master", "local[2]"]
    script = [sys.executable, "-m", "examples.orders", *arguments, "--picture", str(picture)]
    done = subprocess.run(
        script,
        cwd=REPOSITORY,
        env=os.environ | {"JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the account adds up" in done.stdout
    assert re.search(r"^events +600 +600$", done.stdout, re.MULTILINE)
    assert picture.read_bytes().startswith(b"\x89PNG")
