"""Decoders for the values of records: Avro and Protobuf messages as Spark columns, also with the
schemas of a schema registry.

This package owns the decoders and the parser of DDL schemas. `millstream.spark.decode` is the
public function that uses them, and decodes JSON itself.
"""
