"""The Arrow columns match Spark's schema, and a query may select some of them."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructType

from millstream.spark.arrow import arrow_schema
from millstream.spark.error import OptionError
from millstream.spark.source.source_schema import TYPES, requested_columns, schema_of, source_schema


def test_arrow_has_what_spark_expects() -> None:
    names = list(TYPES)
    assert arrow_schema(names) == to_arrow_schema(schema_of(names), timezone="UTC")


def test_options_choose_columns() -> None:
    assert "headers" not in source_schema({}).fieldNames()
    assert source_schema({"includeHeaders": "true"}).fieldNames() == list(TYPES)
    assert source_schema({"columns": "offset,value"}).fieldNames() == ["offset", "value"]


def test_a_query_sets_its_own_schema() -> None:
    assert requested_columns(schema_of(["value", "offset"])) == ("value", "offset")
    with pytest.raises(OptionError, match="has a column size, but the source's are key, value"):
        requested_columns(StructType().add("size", LongType()))
    with pytest.raises(OptionError, match="column value is string, but the source's is binary"):
        requested_columns(StructType().add("value", StringType()))
