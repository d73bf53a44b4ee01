"""The audit trail: changes, denied requests and logins.

`audited.py` records changes around the handlers, and `certificate_login.py` logins by certificates.
`audit_queue.py` holds events in memory, and `audit_writer.py` writes them to the topic `__audit`
and to a file.
"""
