"""Enforces client quotas: measures requests, and decides for how long a client is throttled."""
