"""`millstream user`: the users that log in with a password.

The package owns the commands and reads passwords. `client/admin/` sends the requests.
"""
