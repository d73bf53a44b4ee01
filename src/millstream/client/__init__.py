"""The client for applications."""
