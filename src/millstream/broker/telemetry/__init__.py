"""Client metrics (KIP-714): who pushes what, the payload, and the series that Prometheus sees.

The wire messages and their handlers are elsewhere; the subscriptions are in the metadata store.
"""
