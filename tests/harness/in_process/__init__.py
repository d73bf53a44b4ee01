"""Brokers and their parts in the process of the test, with its own clocks and faults."""
