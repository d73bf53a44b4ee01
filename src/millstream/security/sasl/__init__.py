"""The server sides of the SASL mechanisms, as state machines without I/O.

An exchange takes the client's messages and returns steps (`exchange.py`). The broker's login sends
the challenges and runs slow steps in threads.
"""
