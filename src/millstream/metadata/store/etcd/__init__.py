"""The metadata store on etcd: its JSON gateway, watches and leases.

Leaves starting and running etcd to the operator.
"""
