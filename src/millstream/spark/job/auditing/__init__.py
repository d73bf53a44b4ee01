"""The audit job: compares the input of a pipeline with its output.

This package owns the comparison and its report. Reading archives belongs to `job/archiving`.
"""
