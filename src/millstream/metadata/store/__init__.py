"""The metadata store: the port that the broker uses, and its implementations.

Owns consistent storage of keys, watches and leases. Leaves the meaning of keys to `metadata`.
"""
