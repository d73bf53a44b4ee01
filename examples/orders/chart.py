"""The revenue as a picture and as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from examples.orders.audit import Line
from examples.orders.generator import COUNTRIES
from examples.orders.ledger import Sum, Window

_BAR = 44


def text(revenue: Mapping[Window, Sum]) -> str:
    """A bar for every ten minutes."""
    totals: dict[int, int] = defaultdict(int)
    for window, found in revenue.items():
        totals[window.start_ms] += found.revenue_cents
    most = max(totals.values(), default=1)
    lines = [
        f"{_clock(start_ms)}  {'█' * round(cents / most * _BAR):<{_BAR}} {cents / 100:>12,.2f}"
        for start_ms, cents in sorted(totals.items())
    ]
    return "\n".join(["revenue by ten minutes", *lines])


def picture(revenue: Mapping[Window, Sum], lines: list[Line], path: Path) -> None:
    """Revenue by window and country, and where the events went."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    starts = sorted({window.start_ms for window in revenue})
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), width_ratios=(3, 2))
    bottoms = [0.0] * len(starts)
    for country in COUNTRIES:
        sums = [
            revenue.get(Window(each, country), Sum(0, 0)).revenue_cents / 100 for each in starts
        ]
        left.bar([_clock(each) for each in starts], sums, bottom=bottoms, label=country)
        bottoms = [low + high for low, high in zip(bottoms, sums, strict=True)]
    left.set_title("Revenue by ten minutes and country")
    left.tick_params(axis="x", rotation=45)
    left.margins(y=0.15)
    left.legend(ncols=len(COUNTRIES), loc="upper center")
    events = lines[:4]
    bars = right.barh([each.name for each in events], [each.found for each in events])
    right.bar_label(bars, fmt="{:,.0f}", padding=3)
    right.set_xscale("log")
    right.margins(x=0.2)
    right.invert_yaxis()
    right.set_title("Where the events went")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _clock(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%H:%M")
