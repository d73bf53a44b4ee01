"""Clients that send any request or bytes, also those that no real client sends."""
