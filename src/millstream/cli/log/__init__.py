"""The `millstream log` commands, which show the files of a data directory.

It only reads files; `records` owns the format of batches.
"""
