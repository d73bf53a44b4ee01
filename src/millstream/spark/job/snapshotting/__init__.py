"""The snapshot job: keeps a table with the latest value of each key of a topic.

This package owns the versions of the table and how new records are merged into them.
"""
