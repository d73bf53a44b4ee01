"""Client quotas: which limit applies to a client, and how far the client is above it.

Pure: the caller passes the time. The broker stores quotas (`metadata.security_record`) and enforces
them (`broker.quota`).
"""
