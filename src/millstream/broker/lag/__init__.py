"""The lag of consumer groups, measured by their coordinators for the metrics.

Owns rounds, queries to other brokers and headroom; `groups` owns the committed offsets.
"""
