"""Enforces client quotas: measures requests, and decides for how long a client is throttled.

Leaves the arithmetic of rates and the choice of a quota to `security/quota/`, and pausing the
connection to the session.
"""
