"""Owns the way between record batches and Arrow's columns: the kernels, and what calls them.

Leaves pyarrow to `spark`: the buffers here are plain bytes, so the broker never imports pyarrow.
"""
