"""Owns the data directory of a broker: its lock, its checkpoints and the folders of its logs.

Leaves the files inside a log's folder to the log.
"""
