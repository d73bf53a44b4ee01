"""The reference page of the protocol: the APIs that the broker serves, from its handlers."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from scripts.docs.markdown import table

from millstream.broker.dispatch import ApiEntry
from millstream.broker.handlers import ENTRIES, TELEMETRY_ENTRIES
from millstream.model.acl import label
from millstream.wire.api import PRIVATE_FROM

_ACCESS: Final = (
    "With an [authorizer](../how-to/authorization.md), a client needs these rights. They are those"
    " of Kafka.\n\n"
)
#: "Fetch: versions 4 to 18. A sentence that follows."
_FIRST_LINE: Final = re.compile(r"(\w+): versions? [\d to]+\.\s*", re.DOTALL)


def page() -> str:
    """Return a table of APIs and versions, then the description of each handler."""
    public = [
        entry for entry in (*ENTRIES, *TELEMETRY_ENTRIES) if entry.request.api_key < PRIVATE_FROM
    ]
    rows = [
        (f"`{_name(entry)}`", str(int(entry.request.api_key)), _versions(entry)) for entry in public
    ]
    sections = [
        f"### {_name(entry)}\n\nVersions {_versions(entry)}. {_text(entry)}\n" for entry in public
    ]
    heads = ("API", "key", "versions")
    return (
        table(heads, rows)
        + "\n## Access\n\n"
        + _ACCESS
        + table(("API", "operation", "resource", "needed"), _rights(public))
        + "\n## Each API\n\n"
        + "\n".join(sections)
    )


def _rights(entries: Iterable[ApiEntry[Any, Any]]) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each right that an API's handler checks."""
    for entry in entries:
        name = f"`{_name(entry)}`"
        if not entry.access:
            yield name, "none", "", ""
        for right in entry.access or ():
            condition = right.condition or "always"
            yield name, label(right.operation), label(right.resource_type), condition


def _name(entry: ApiEntry[Any, Any]) -> str:
    return entry.request.__name__.removesuffix("Request")


def _versions(entry: ApiEntry[Any, Any]) -> str:
    first, last = entry.versions
    return str(first) if first == last else f"{first} to {last}"


def _text(entry: ApiEntry[Any, Any]) -> str:
    """Return the docstring of the handler's module, without the API's name and versions."""
    text = str(sys.modules[entry.handle.__module__].__doc__)
    return _FIRST_LINE.sub("", text, count=1).strip()
