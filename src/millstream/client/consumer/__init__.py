"""Consumers for threads and for asyncio: positions, commits by delivery mode, and rebalances.

The package owns which records the application gets and which offsets it commits. It leaves fetching
and the group protocol to librdkafka.
"""
