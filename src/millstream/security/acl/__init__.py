"""Authorization: the rules of ACLs, filters, roles, decisions, and what learning mode observes.

All of it is pure. Handlers of the broker use it through `broker/context.py`. The ACLs themselves
are records of the metadata (`metadata/security_record.py`).
"""
