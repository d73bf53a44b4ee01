"""Owns which files of a log must be synced, and the thread that syncs them for all logs.

Leaves when a flush is due to `upkeep` and to the partition's leader.
"""
