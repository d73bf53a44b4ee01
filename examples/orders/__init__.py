"""Orders from a shop: checked, deduplicated, enriched and summed up as they come.

`python -m examples.orders` runs it end to end, with a broker of its own, and ends with an account
of every event that was generated.
"""
