"""Every handler module declares an API entry, and ApiVersions lists exactly the entries."""

from __future__ import annotations

import importlib
import pkgutil
from types import SimpleNamespace
from typing import Any

import pytest

from harness.in_process.reply_receiver import RecordedReplies
from millstream.broker import handlers
from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.context import ConnectedClient, Context
from millstream.broker.dispatch import ApiEntry
from millstream.broker.handlers import ENTRIES, TELEMETRY_ENTRIES, api_table, api_versions
from millstream.broker.metrics.broker_metrics import Metrics
from millstream.metadata.image import ClusterImage
from millstream.wire.api import PRIVATE_FROM, ApiKey
from millstream.wire.messages.api_versions import ApiVersionsRequest

#: Modules of the package that hold a part of another API's handler.
HELPER_MODULES = {"replica_fetch"}


def listed(*, has_telemetry: bool) -> dict[int, tuple[int, int]]:
    """The version range of each API in the response to ApiVersions."""
    services: Any = SimpleNamespace(
        apis=api_table(Metrics(), has_telemetry=has_telemetry),
        catalog=SimpleNamespace(image=ClusterImage()),
        config=BrokerConfig.load(),
    )
    context = Context(
        services, "PLAINTEXT", 0, None, ConnectedClient("127.0.0.1", 0), 0.0, RecordedReplies()
    )
    rows = api_versions.handle(ApiVersionsRequest(), context).api_keys
    return {row.api_key: (row.min_version, row.max_version) for row in rows}


def declared(entries: tuple[ApiEntry[Any, Any], ...]) -> dict[int, tuple[int, int]]:
    return {
        int(entry.request.api_key): entry.versions
        for entry in entries
        if entry.request.api_key < PRIVATE_FROM
    }


@pytest.mark.parametrize("has_telemetry", [False, True])
def test_api_versions_lists_the_declared_entries(has_telemetry: bool) -> None:
    expected = declared(ENTRIES + TELEMETRY_ENTRIES if has_telemetry else ENTRIES)
    # See the comment at this entry.
    expected[ApiKey.PRODUCE] = (0, expected[ApiKey.PRODUCE][1])
    assert listed(has_telemetry=has_telemetry) == expected


def test_every_handler_module_declares_an_entry_that_is_collected() -> None:
    names = {module.name for module in pkgutil.iter_modules(handlers.__path__)} - HELPER_MODULES
    found = {
        name: importlib.import_module(f"millstream.broker.handlers.{name}").API for name in names
    }
    assert {id(entry) for entry in found.values()} == {
        id(entry) for entry in ENTRIES + TELEMETRY_ENTRIES
    }
    for name, entry in found.items():
        assert entry.handle.__module__ == f"millstream.broker.handlers.{name}"
        assert entry.request.__module__ == f"millstream.wire.messages.{name}"


@pytest.mark.parametrize("entry", ENTRIES + TELEMETRY_ENTRIES, ids=lambda e: e.request.__name__)
def test_an_entry_has_two_messages_of_one_api_with_codecs_for_its_versions(
    entry: ApiEntry[Any, Any],
) -> None:
    assert entry.request.api_key is entry.response.api_key
    for shape in (entry.request, entry.response):
        assert shape.versions[0] <= entry.versions[0] <= entry.versions[1] <= shape.versions[1]


def test_no_api_is_declared_twice() -> None:
    keys = [entry.request.api_key for entry in ENTRIES + TELEMETRY_ENTRIES]
    assert len(keys) == len(set(keys))
