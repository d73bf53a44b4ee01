"""`millstream doctor`: check a host and a cluster, and say what to do.

It owns the checks and their thresholds. Every check is read-only.
"""
