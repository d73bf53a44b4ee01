"""The benchmark: Millstream and Apache Kafka on the same machine, with the same tools, in one run.

See `python -m bench -h`.
"""
