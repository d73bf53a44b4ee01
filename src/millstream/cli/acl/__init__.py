"""`millstream acl`: ACLs, roles and learning mode.

The package owns the commands. The brokers decide what an ACL means.
"""
