"""Spark Declarative Pipelines that read and write topics: projects, updates and their progress.

This package owns projects on disk and their updates. The commands belong to `millstream.cli`, the
source and sink of the flows to `spark/source` and `spark/sink`.
"""
