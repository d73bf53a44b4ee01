"""Spark Declarative Pipelines with topics at both ends: projects, their runs, and how runs go."""
