"""A pipeline that validates, deduplicates, enriches and aggregates the orders of a shop.

`python -m examples.orders` runs it with its own broker, and compares the outcome with every
generated event.
"""
