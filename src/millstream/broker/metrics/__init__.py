"""Metrics of the broker: counters, label budgets, Prometheus text, and the HTTP server.

Other packages count; the modules here read those counts at a scrape.
"""
