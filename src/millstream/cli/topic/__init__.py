"""The `millstream topic` commands: create, list, describe, alter, delete, and find hot keys.

It owns their requests and the analysis of skew; `support` owns connections and output.
"""
