"""Producers for threads and for asyncio: sending, delivery reports, partitioning and transactions.

The package owns the handling of librdkafka's producers. It leaves batching, retries and the
protocol to librdkafka.
"""
