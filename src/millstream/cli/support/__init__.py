"""Shared parts of commands: connection options, output, errors, messages and positions.

The requests of one command belong to the package of that command.
"""
