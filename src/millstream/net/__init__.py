"""Sockets: accepting connections, splitting bytes into frames, bounding what clients may cost."""
