"""Sockets: listeners, connections, frames, sending files, and the limits of what a client may cost.

Does not know what a frame means: the broker's session does.
"""
