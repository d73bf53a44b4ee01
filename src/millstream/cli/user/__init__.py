"""`millstream user`: the users that log in with a password."""
