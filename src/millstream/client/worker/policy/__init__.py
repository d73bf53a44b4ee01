"""The settings of a worker, and its rules for retries, dead letters and deadlines. Pure.

The package owns the worker's settings, retries and backoff, and the circuit breaker.
"""
