"""How outcomes reach the brokers: output, retries, dead letters and offsets.

The package owns the order of sends and commits, with and without transactions.
"""
