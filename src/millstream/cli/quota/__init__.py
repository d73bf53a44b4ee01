"""`millstream quota`: quotas of users, client ids and addresses.

The package owns the commands. The brokers decide which quota applies to a client.
"""
