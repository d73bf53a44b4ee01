"""Decoders for the values of records: Avro and Protobuf messages as Spark columns.

This package owns the decoders and the parser of DDL schemas. `millstream.spark.decode` is the
public function that uses them, and decodes JSON itself.
"""
