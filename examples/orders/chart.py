"""Draws the revenue as a chart and as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from examples.orders.demo import Result
from examples.orders.expected_outcome import Sum, Window
from examples.orders.generator import COUNTRIES, Recipe

_BAR = 44
_COLOURS = ("#1b4965", "#3f7cac", "#62b6cb", "#f4a259", "#bc4b51")


def text(revenue: Mapping[Window, Sum]) -> str:
    """Return a text bar for each window of ten minutes."""
    totals: dict[int, int] = defaultdict(int)
    for window, found in revenue.items():
        totals[window.start_ms] += found.revenue_cents
    most = max(totals.values(), default=1)
    lines = [
        f"{_clock(start_ms)}  {'█' * round(cents / most * _BAR):<{_BAR}} {cents / 100:>12,.2f}"
        for start_ms, cents in sorted(totals.items())
    ]
    return "\n".join(["revenue by ten minutes", *lines])


def picture(result: Result, recipe: Recipe, path: Path) -> None:
    """Draw the revenue by window and country, the kinds of events, and the comparison."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplot_mosaic(
        [["revenue", "revenue"], ["events", "account"]],
        figsize=(12, 8),
        height_ratios=(3, 2),
        layout="constrained",
    )
    layout: Any = figure.get_layout_engine()
    layout.set(w_pad=0.15, h_pad=0.15)
    title = f"{recipe.events:,} order events in {recipe.rounds} updates of the pipeline"
    figure.suptitle(title, fontsize=15, weight="bold")
    for each in axes.values():
        each.spines[["top", "right"]].set_visible(False)
    _revenue(axes["revenue"], result.outcome.revenue_topic)
    _events(axes["events"], result, recipe)
    _account(axes["account"], result)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _revenue(axes: Any, revenue: Mapping[Window, Sum]) -> None:
    starts = sorted({window.start_ms for window in revenue})
    clocks = [_clock(each) for each in starts]
    bottoms = [0.0] * len(starts)
    for country, colour in zip(COUNTRIES, _COLOURS, strict=True):
        sums = [
            revenue.get(Window(each, country), Sum(0, 0)).revenue_cents / 100 for each in starts
        ]
        axes.bar(clocks, sums, bottom=bottoms, label=country, color=colour)
        bottoms = [low + high for low, high in zip(bottoms, sums, strict=True)]
    axes.set_title("Revenue in euros by ten minutes and country, as in the topic revenue")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.grid(visible=True, alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _events(axes: Any, result: Result, recipe: Recipe) -> None:
    events = result.lines[:4]
    bars = axes.barh(
        [each.name for each in events], [each.found for each in events], color=_COLOURS[1]
    )
    shares = [f"{each.found:,} ({each.found / recipe.events:.1%})" for each in events]
    axes.bar_label(bars, labels=shares, padding=4)
    axes.margins(x=0.3)
    axes.invert_yaxis()
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.set_title("Where the events went")


def _account(axes: Any, result: Result) -> None:
    rows: list[tuple[str, Any, Any, bool]] = [
        (each.name, each.expected, each.found, each.agrees) for each in result.lines
    ]
    rows += [
        (f"audit: {name}", each.facts["expected"], each.facts["matched"], each.is_ok)
        for name, each in result.proofs.items()
    ]
    cells = [
        [name, f"{expected:,}", f"{found:,}", "yes" if good else "NO"]
        for name, expected, found, good in rows
    ]
    axes.set_axis_off()
    table = axes.table(
        cells,
        colLabels=["", "expected", "found", "the same"],
        colWidths=[0.46, 0.18, 0.18, 0.18],
        edges="horizontal",
        bbox=[0, 0, 1, 1],
    )
    for (row, column), cell in table.get_celld().items():
        cell.set_edgecolor("#cccccc")
        cell.set_text_props(ha="left" if column == 0 else "right")
        if row and not rows[row - 1][3]:
            cell.set_text_props(color=_COLOURS[-1], weight="bold")
    axes.set_title("The account" + ("" if result.is_good else ": DOES NOT ADD UP"))


def _clock(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%H:%M")
