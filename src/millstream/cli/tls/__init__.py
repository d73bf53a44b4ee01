"""The `millstream tls` commands: a local certificate authority for development and tests."""
