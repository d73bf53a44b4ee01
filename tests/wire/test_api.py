from __future__ import annotations

from kio.index import load_request_schema
from kio.schema.index import api_key_map, schema_name_map

from millstream.wire.api import ApiKey, flexible_from


def test_keys_and_flexible_versions_equal_those_of_kio() -> None:
    for key, name in api_key_map.items():
        assert ApiKey(key).name == name.upper()
        around = {flexible_from(key) - 1, flexible_from(key), max(schema_name_map[name])}
        for version in around & set(schema_name_map[name]):
            is_flexible = load_request_schema(key, version).__flexible__
            assert (version >= flexible_from(key)) == is_flexible, (name, version)


def test_an_unknown_key_is_flexible_from_version_0() -> None:
    assert flexible_from(9999) == 0
