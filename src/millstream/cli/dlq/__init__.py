"""`millstream dlq`: list, follow, show, count, replay and delete dead letters.

The client's `dead_letter` package reads and replays letters.
"""
