"""Client metrics (KIP-714): subscriptions, pushed payloads, and the series that Prometheus sees.

The handlers own the wire messages; the metadata store owns the subscriptions.
"""
