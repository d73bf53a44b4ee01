"""`millstream worker`: run workers in processes of their own, and say how many are needed.

The package owns the processes, their reports, and the HTTP server for health and metrics. What a
worker does with messages is in `millstream.client.worker`.
"""
