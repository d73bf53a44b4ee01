"""What a worker may start, and what follows an attempt. Pure.

The package owns the worker's settings, retries and backoff, and the circuit breaker.
"""
