"""The messages that a worker holds, from the poll that read them until their offset is committed.

The package owns which message may start, which offset may be committed, the metadata beside it, and
what happens to a message after an attempt. Nothing here waits for brokers.
"""
