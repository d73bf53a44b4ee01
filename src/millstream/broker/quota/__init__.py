"""Enforces client quotas: measures requests, and says for how long a client is throttled."""
