"""Sockets: listeners, connections, frames, sending files, and the limits of a client.

Does not know what a frame means: the broker's session does.
"""
