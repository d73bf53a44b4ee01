"""Placement, elections, reassignment: pure decisions from the cluster image."""
