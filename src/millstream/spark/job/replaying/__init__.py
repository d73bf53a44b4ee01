"""The replay job: sends records of a topic or archive to a topic again, each once.

This package owns the plan of a replay and its progress. Exactly-once writing belongs to the sink.
"""
