"""The archive job: copies topics into tables of files, exactly once.

This package owns the layout of archives, their commits and their compaction in three formats.
Which offsets the log has belongs to `job/topic_offsets.py`.
"""
