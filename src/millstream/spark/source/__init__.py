"""The Spark source: reads topics in batch and streaming queries.

This package owns options, planning of offset ranges, fetching and the progress of queries.
Connections, retries and leaders belong to `millstream.protocol`, decoding to `millstream.records`.
"""
