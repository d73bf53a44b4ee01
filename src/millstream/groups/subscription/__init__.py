"""Subscriptions: topic patterns, the topics that members name, and the topics that exist.

The package leaves assignment of partitions to `groups.consumer`.
"""
