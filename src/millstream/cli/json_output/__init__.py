"""The keys of `--json` outputs, which are stable: scripts depend on them.

It owns the description of each command's output. Commands build the output themselves; the tests
compare it with this description. `table.JSON_OUTPUTS` has all commands.
"""
