"""The `millstream cluster` and `millstream broker` commands: local clusters, status, elections.

It owns their requests; `process` owns the child processes of a local cluster.
"""
