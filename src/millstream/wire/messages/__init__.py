"""The messages of the protocol: one module for each API, with its request and its response.

The classes declare fields and versions only; handlers and clients give them meaning.
"""
