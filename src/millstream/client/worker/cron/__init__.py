"""Periodic jobs: cron expressions, and the clock that sends one message for each tick.

The package owns the times of ticks and the topic that they are sent to. Ticks are then messages
like all others: they are retried, become dead letters, and are counted.
"""
