"""Calling handlers: on threads or on an event loop."""
