"""The interfaces to the outside of the process: clock, disk, network, randomness. Also the
supervisor of background tasks.

Every layer gets these as parameters and never uses `time`, `os`, sockets or `random` directly, so
that a seeded simulator on virtual time can replace them. Timers belong to the running event loop
(`loop.call_later`, `asyncio.sleep`), which the simulator also replaces.
"""
