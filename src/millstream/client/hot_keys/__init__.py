"""Hot keys: finding them, spreading them over partitions, and merging their records in order.

The package owns the header that numbers the records of a hot key. It is pure and leaves sending and
reading to the clients.
"""
