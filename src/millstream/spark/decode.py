"""Decodes the values of records into columns: JSON, Avro or Protobuf, with a given schema.

    rows = decoded(records, "order_id STRING NOT NULL, amount DOUBLE")
    good, letters = split(rows, group_id="billing")

`records` has the columns of `format("millstream")`. A value that does not decode never fails the
query: its fields are null, the error column says why, and `split` turns the record into a dead
letter for the sink. A null value (a tombstone) is not an error; its fields are null.

Decoding is lazy and does not call Spark, so it works in batch and streaming queries, over Spark
Connect, and inside the functions of a declarative pipeline. The JVM decodes JSON; Python workers
decode Avro and Protobuf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from millstream.model.sentinel import INT32_MAX
from millstream.spark import dead_letter
from millstream.spark.error import OptionError
from millstream.spark.values.ddl import Field, fields
from millstream.spark.values.value_decoder import REGISTRY_HEADER_BYTES, Decoder, decoding_function

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

ERROR_COLUMN: Final = "_error"
_FORMATS: Final = ("json", "avro", "protobuf")
#: A constant, because functions of a declarative pipeline must not ask Spark for columns.
_SOURCE_COLUMNS: Final = frozenset(
    ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
)
_CORRUPT: Final = "_millstream_corrupt"
_DATA: Final = "_millstream_data"


class Split(NamedTuple):
    """The decoded rows without the error column, and dead letters of the others for the sink."""

    valid: DataFrame
    dead_letters: DataFrame


def decoded(
    records: DataFrame,
    schema: Any,
    *,
    format: Literal["json", "avro", "protobuf"] = "json",  # noqa: A002
    message: str | None = None,
    into: str | None = None,
    column: str = "value",
    error_column: str = ERROR_COLUMN,
    registry_header: bool = False,
) -> DataFrame:
    """Add a column for each field of the value, or one struct named `into`, and `error_column`.

    The error column is null, or says why the value did not decode. `schema` depends on the format:

    - JSON: Spark's DDL or StructType. Fields that are NOT NULL are required.
    - Avro: the schema as JSON text or dict.
    - Protobuf: a generated class, or a descriptor set with the full name of the `message` in it.
      The descriptor set is bytes, or a path that `protoc --include_imports --descriptor_set_out`
      wrote.

    With `registry_header`, values start with the header that schema registry clients write. It is
    removed."""
    if format not in _FORMATS:
        raise OptionError(f"format={format!r} is unknown: use one of {', '.join(_FORMATS)}.")
    found = _decoding(format, schema, message, column, registry_header)
    if into is None and (clash := sorted(_SOURCE_COLUMNS.intersection(found.names))):
        raise OptionError(
            f"the fields {', '.join(clash)} are also columns of the records: set into=NAME to get"
            " the value as one struct of that name."
        )
    return _spread(records, found, into, error_column)


def split(
    rows: DataFrame, *, group_id: str, headers: bool = False, error_column: str = ERROR_COLUMN
) -> Split:
    """Split the result of `decoded` into valid rows and dead letters.

    `group_id` is the consumer of the dead letters' records that `millstream dlq list` shows. With
    `headers`, the rows have the records' headers, and dead letters keep them."""
    from pyspark.sql import functions as f

    valid = rows.where(f.col(error_column).isNull()).drop(error_column)
    failed = rows.where(f.col(error_column).isNotNull())
    letters = dead_letter.dead_letters(
        failed, group_id=group_id, headers=headers, error_column=error_column
    )
    return Split(valid, letters)


class _Decoding(NamedTuple):
    """The field names, and the expressions for the value and for the error."""

    names: list[str]
    data: Column
    #: Computed from the struct in the column `_DATA`.
    error: Column


def _decoding(
    kind: str, schema: Any, message: str | None, column: str, registry_header: bool
) -> _Decoding:
    from pyspark.sql import functions as f

    if kind == "json":
        return _json(schema, f.col(column), registry_header)
    if kind == "avro":
        from millstream.spark.values.avro_decoder import AvroDecoder

        decoder: Decoder = AvroDecoder(schema, registry_header=registry_header)
    else:
        from millstream.spark.values.protobuf_decoder import ProtobufDecoder

        decoder = ProtobufDecoder(schema, message, registry_header=registry_header)
    data = decoding_function(decoder)(f.col(column))
    error = f.col(f"{_DATA}.error")
    return _Decoding(decoder.type.fieldNames(), data, error)


def _spread(records: DataFrame, found: _Decoding, into: str | None, error_column: str) -> DataFrame:
    from pyspark.sql import functions as f

    rows = records.withColumn(_DATA, found.data).withColumn(error_column, found.error)
    value = f.col(f"{_DATA}.value")
    good = f.col(error_column).isNull() & value.isNotNull()
    fields = {each: value.getField(each) for each in found.names}
    if into is not None:
        one = f.struct(*(each.alias(name) for name, each in fields.items()))
        rows = rows.withColumn(into, f.when(good, one))
    else:
        rows = rows.withColumns({name: f.when(good, each) for name, each in fields.items()})
    return rows.drop(_DATA)


def _json(schema: StructType | str, value: Column, registry_header: bool) -> _Decoding:
    """Decode JSON with Spark's parser, which puts invalid text into a separate column."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    parsed: StructType | str
    if isinstance(schema, str):
        found, parsed = fields(schema), f"{schema}, {_CORRUPT} STRING"
    else:
        found = [Field(each.name, "", not each.nullable) for each in schema.fields]
        parsed = t.StructType([*schema.fields, t.StructField(_CORRUPT, t.StringType())])
    text = " ".join((schema if isinstance(schema, str) else schema.simpleString()).split())
    headless, body = f.lit(False), value
    if registry_header:
        headless = f.substring(value, 1, 1) != f.lit(b"\0")
        body = f.substring(value, REGISTRY_HEADER_BYTES + 1, INT32_MAX)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    data = f.struct(
        f.from_json(body.cast("string"), parsed, options).alias("value"),
        f.is_valid_utf8(body.cast("string")).alias("text"),
        value.isNull().alias("absent"),
        headless.alias("headless"),
    )
    return _Decoding([each.name for each in found], data, _json_error(found, text))


def _json_error(found: list[Field], schema: str) -> Column:
    from pyspark.sql import functions as f

    value = f.col(f"{_DATA}.value")
    error = (
        f.when(f.col(f"{_DATA}.absent"), None)
        .when(f.col(f"{_DATA}.headless"), "no schema registry header")
        .when(~f.col(f"{_DATA}.text"), "not valid UTF-8")
        .when(
            value.isNull() | value.getField(_CORRUPT).isNotNull(),
            f"not JSON that fits {schema}",
        )
    )
    for field in found:
        if field.is_required:
            missing = value.getField(field.name).isNull()
            error = error.when(missing, f"the field {field.name!r} is missing or null")
    return error
