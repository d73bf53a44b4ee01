"""The `millstream group` commands: list, describe, reset and delete consumer groups.

It owns their requests and the plan of new offsets; `support` owns connections and output.
"""
