"""A message on its way through a worker: its headers, its state, and what the handler sees of it.

The package owns the headers that workers write, and the records that they build from a message.
"""
