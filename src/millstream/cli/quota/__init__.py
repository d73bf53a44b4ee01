"""`millstream quota`: quotas of users, client ids and addresses."""
