"""Calls handlers: chooses the handler of a message, decodes its payload, and runs it.

The package owns the threads and tasks of handlers. What follows an attempt belongs to `queue/` and
`policy/`.
"""
