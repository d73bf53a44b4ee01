"""The broker: sessions, dispatch, one handler per API, settings, metrics, start and stop.

Connects the packages below it; partitions, groups, transactions and the controller are theirs.
"""
