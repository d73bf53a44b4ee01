"""Renders a topic's profile as one self-contained HTML page with tables and SVG plots. Pure."""

from __future__ import annotations

import html
import io
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from millstream.spark.job.profiling.profile_advice import PARTITION_BYTES_S, TopicProfile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE_INCHES: Final = (7.2, 2.6)
_COLOUR: Final = "#2b6cb0"
_HOT: Final = "#c05621"
_PARTITIONS_DRAWN: Final = 200
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
td, th { padding: .2em .8em; border-bottom: 1px solid #ddd; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; }
.advice li { margin: .4em 0; }
"""


def page(profile: TopicProfile, advice: Sequence[str]) -> str:
    """Return the HTML page."""
    title = f"Profile of {profile.topic}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        _advice(advice),
        _table(("what", "value"), _summary(profile)),
        "<h2>Over time</h2>",
        _plot(lambda axes: _draw_times(axes, profile)),
        "<h2>Partitions</h2>",
        _plot(lambda axes: _draw_partitions(axes, profile)),
        "<h2>Keys</h2>",
        _plot(lambda axes: _draw_keys(axes, profile)),
        _table(("key", "records", "bytes", "share"), _key_rows(profile)),
        "<h2>Compression</h2>",
        _plot(lambda axes: _draw_codecs(axes, profile)),
    ]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _advice(advice: Sequence[str]) -> str:
    if not advice:
        return "<p>Nothing to change.</p>"
    items = "".join(f"<li>{html.escape(each)}</li>" for each in advice)
    return f'<ul class="advice">{items}</ul>'


def _summary(profile: TopicProfile) -> list[tuple[str, str]]:
    load = profile.load
    return [
        ("records", f"{load.records:,}"),
        ("megabytes", f"{load.bytes / 1e6:,.1f}"),
        ("seconds from first to last", f"{profile.span_s:,.0f}"),
        ("records/s, mean and peak", _pair(load.records / profile.span_s, profile.peak_records_s)),
        (
            "MB/s, mean and peak",
            _pair(load.bytes / profile.span_s / 1e6, profile.peak_bytes_s / 1e6),
        ),
        ("record bytes, p50 / p90 / p99", " / ".join(f"{size:,}" for size in load.sizes)),
        ("largest record, bytes", f"{load.size_max:,}"),
        ("without key", f"{load.null_keys:,}"),
        ("without value", f"{load.null_values:,}"),
        ("distinct keys", f"{profile.keys.distinct:,}"),
        ("duplicates", f"{profile.duplicates:,}"),
        ("out of order", f"{profile.behind:,} (by up to {profile.behind_s_max:,.1f} s)"),
    ]


def _pair(mean: float, peak: float) -> str:
    return f"{mean:,.2f} and {peak:,.2f}"


def _key_rows(profile: TopicProfile) -> Iterable[tuple[str, ...]]:
    for key in profile.keys.named:
        share = f"{profile.share(key.records):.1%}"
        yield key.name, f"{key.records:,}", f"{key.bytes:,}", share


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    lines = []
    for first, *rest in rows:
        cells = "".join(f'<td class="number">{html.escape(cell)}</td>' for cell in rest)
        lines.append(f"<tr><td>{html.escape(first)}</td>{cells}</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _plot(draw: Callable[[Axes], None]) -> str:
    """Return an SVG element. pyplot is not used, because it keeps figures in memory."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :]


def _draw_times(axes: Axes, profile: TopicProfile) -> None:
    buckets = profile.load.buckets
    # Matplotlib's dates are days since 1970.
    moments = [each.at / 86_400 for each in buckets]
    rates = [each.bytes / profile.bucket_s / 1e6 for each in buckets]
    axes.plot(moments, rates, color=_COLOUR, drawstyle="steps-post", marker=".", markersize=3)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("MB/s")
    axes.xaxis_date()
    axes.tick_params(axis="x", labelrotation=20)


def _draw_partitions(axes: Axes, profile: TopicProfile) -> None:
    shown = profile.load.partitions[:_PARTITIONS_DRAWN]
    colours = [_HOT if profile.parts(each.records) > 2 else _COLOUR for each in shown]
    axes.bar([each.at for each in shown], [each.bytes / 1e6 for each in shown], color=colours)
    limit = PARTITION_BYTES_S * profile.span_s / 1e6
    if shown and max(each.bytes for each in shown) / 1e6 > limit / 2:
        axes.axhline(limit, color=_HOT, linestyle="--", linewidth=1)
    axes.set_xlabel("partition")
    axes.set_ylabel("MB")


def _draw_keys(axes: Axes, profile: TopicProfile) -> None:
    shares = list(itertools.accumulate(profile.share(count) for count in profile.keys.ranked))
    if shares:
        axes.plot(range(1, len(shares) + 1), shares, color=_COLOUR, marker=".", markersize=3)
        axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("largest keys")
    axes.set_ylabel("share of records")


def _draw_codecs(axes: Axes, profile: TopicProfile) -> None:
    names = sorted(profile.packed.packed_bytes, key=profile.packed.ratio)
    axes.barh(names, [profile.packed.ratio(name) for name in names], color=_COLOUR)
    axes.set_xlim(0, 1.05)
    axes.set_xlabel("size of a sample in batches of 64 KiB, compressed / plain")
