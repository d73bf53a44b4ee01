"""Building, starting and stopping a broker: its environment, storage, services and membership.

`server.py` calls these parts in order. Serving requests is left to sessions and handlers.
"""
