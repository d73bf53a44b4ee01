"""Security: TLS contexts, authentication, authorization, quotas and the audit trail.

Decides who a client is, what it may do, and how much it may use. Sessions and handlers of the
broker call it; listeners and connections belong to `net`.
"""
