"""Owns record batches (format v2): header, compression, building, decoding.

Does no I/O, and leaves offsets and the order of batches to `log`. The broker's data path uses only
`batch`, where a batch is opaque bytes; the other modules look inside it. `arrow/` converts batches
to Arrow's columns and back.
"""

from __future__ import annotations

from millstream.records.kernel import is_compiled as kernel_is_compiled

__all__ = ["kernel_is_compiled"]
