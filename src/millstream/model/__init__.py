"""Types and rules that every layer shares: topics, error codes, settings, sentinels.

Has no I/O, and leaves what happens with these values to the other packages.
"""
