"""The seams to the world outside the process: clock, disk, network, randomness; and the
supervisor of background tasks, through which every layer starts its own.

Every layer takes these as parameters and never reaches for `time`, `os`, sockets or `random`
itself, so that a seeded simulator on virtual time can stand in for all of them at once. Timers are
the running event loop's own (`loop.call_later`, `asyncio.sleep`): the simulator brings its loop.
"""
