"""The leader's side of replication: the state of followers, the ISR, and their fetch sessions.

Leaves the requests' network side to `broker/handlers`, and the records to `metadata`.
"""
