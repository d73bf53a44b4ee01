"""Partitions as a broker sees them: leadership, in-sync replicas, high watermark, who waits on
what.
"""
