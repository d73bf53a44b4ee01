"""The protocol: bytes to messages and back. No I/O, no state, nothing asynchronous."""
