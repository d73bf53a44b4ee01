"""Owns the way from an offset or a timestamp to checked bytes of a segment.

Leaves appending to `log`, and repairing files after an unclean shutdown to `recovery`.
"""
