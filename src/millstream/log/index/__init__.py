"""Owns the index files of a segment: offsets, timestamps and aborted transactions.

Leaves the batches that the entries point at to `reading`.
"""
