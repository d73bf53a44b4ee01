"""Security: TLS contexts, authentication, authorization, quotas and the audit trail.

Decides who a client is, what it may do and how much. Sessions and handlers of the broker ask;
listeners and connections belong to `net`.
"""
