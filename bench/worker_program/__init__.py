"""One program per system that `bench.worker` measures: each calls an empty handler for messages.

A program prints the seconds between its first and its last message. Those of FastStream and Celery
run in an environment of their own, which `make bench-worker` installs.
"""
