"""Parsing of fields in DDL."""

from __future__ import annotations

import pytest

from millstream.spark.values.ddl import Field, fields


def test_fields_with_types_of_every_form() -> None:
    ddl = """
        id STRING NOT NULL, price DECIMAL(10, 2), `odd, ``name``` BIGINT not  null,
        tags ARRAY<STRUCT<a: INT, b: MAP<STRING, INT>>>, note: STRING COMMENT 'a, b NOT NULL',
        code STRING NOT NULL COMMENT "it's"
    """
    assert fields(ddl) == [
        Field("id", "STRING", True),
        Field("price", "DECIMAL(10, 2)", False),
        Field("odd, `name`", "BIGINT", True),
        Field("tags", "ARRAY<STRUCT<a: INT, b: MAP<STRING, INT>>>", False),
        Field("note", "STRING", False),
        Field("code", "STRING", True),
    ]


@pytest.mark.parametrize("ddl", ["", "id", "id STRING,", "id STRING,,x INT"])
def test_an_invalid_field_is_named(ddl: str) -> None:
    with pytest.raises(ValueError, match="is not a field of a schema"):
        fields(ddl)
