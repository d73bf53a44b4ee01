"""A real broker inside a test: the broker, its faults on demand, and the pytest plugin.

Runs the unmodified broker package; owns only the fixtures around it.
"""
