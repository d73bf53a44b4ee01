"""A real broker inside a test: the broker, its faults on demand, and the pytest plugin.

Runs the broker package as it is; owns only what a test needs around it.
"""
