"""The reference page of Spark options, from the definitions of the source and the sink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scripts.docs.markdown import table

from millstream.spark.sink.sink_options import KAFKA_OPTIONS as SINK_KAFKA_OPTIONS
from millstream.spark.sink.sink_options import OPTIONS as SINK_OPTIONS
from millstream.spark.source.source_options import COLUMNS, HEADERS
from millstream.spark.source.source_options import KAFKA_OPTIONS as SOURCE_KAFKA_OPTIONS
from millstream.spark.source.source_options import OPTIONS as SOURCE_OPTIONS


def page() -> str:
    """Return the options and columns of the source, then the options of the sink."""
    columns = (*COLUMNS, HEADERS)
    return f"""## Source

{_options(SOURCE_OPTIONS)}
Columns: {_names(columns)}. The column `headers` needs `includeHeaders` or `columns`.

Options with the prefix `kafka.` that have an effect: {_kafka(SOURCE_KAFKA_OPTIONS)}.

## Sink

{_options(SINK_OPTIONS)}
Options with the prefix `kafka.` that have an effect, besides those of connections:
{_kafka(SINK_KAFKA_OPTIONS)}.
"""


def _options(options: Mapping[str, str]) -> str:
    return table(("option", "meaning"), ((f"`{name}`", text) for name, text in options.items()))


def _kafka(names: Iterable[str]) -> str:
    return _names(f"kafka.{name}" for name in names)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
