"""Record batches (format v2): header checks and stamps, codecs, building and decoding records.

No I/O. The broker's data path uses only `batch`: a batch stays opaque bytes there. `record`,
`builder` and `codec` look inside, for compaction, validation, coordinators and tools.
"""

from __future__ import annotations

from millstream.records.kernel import is_compiled as kernel_is_compiled

__all__ = ["kernel_is_compiled"]
