"""Transactions on the produce path: admission of partitions, request order, markers.

Owns the way to the coordinator of a transaction; `transactions` owns the coordinator itself.
"""
