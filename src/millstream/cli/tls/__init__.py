"""The `millstream tls` commands: a local certificate authority for development and tests.

The package owns the command and what it prints. `security/local_authority.py` owns the files.
"""
