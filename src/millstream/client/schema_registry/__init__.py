"""Keys and values in the wire format of Confluent's schema registry: Avro, JSON Schema, Protobuf.

This package owns the connection to a registry, the frames with schema ids, and the serializers on
confluent-kafka's own classes. It imports confluent-kafka's registry client when the first
`SchemaRegistry` is created. Needs `millstream[schema-registry]`.
"""
