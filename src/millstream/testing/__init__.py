"""A real broker inside a test: the broker, its faults on demand, and the pytest plugin."""
