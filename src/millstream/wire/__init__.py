"""The Kafka protocol: fields, schemas, codecs and framing, and the messages of each API.

Turns bytes into messages and back, without I/O or state. Reading from sockets belongs to `net`, and
handling requests belongs to `broker`.
"""
