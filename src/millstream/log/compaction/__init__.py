"""Owns the compaction of logs: which log, which segments, which records, and the swap of files.

Leaves deletion by time and size to `retention`, and which offsets are final to the caller.
"""
