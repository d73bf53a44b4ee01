"""The versions of etcd that keep acknowledged changes.

Before 3.4.22, and from 3.5.0 to 3.5.5, members can disagree on committed data or lose it.
"""

from __future__ import annotations

import re
from typing import Final

_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")
#: The first safe patch version of the minor versions that have unsafe ones.
_SAFE_PATCHES: Final = {(3, 4): 22, (3, 5): 6}


def is_safe_etcd(version: str) -> bool:
    """Whether an etcd of this version keeps its data. Raises ValueError for a malformed version."""
    match = _VERSION.match(version)
    if match is None:
        raise ValueError(f"malformed version: {version!r}")
    major, minor, patch = map(int, match.groups())
    return (major, minor) >= (3, 4) and patch >= _SAFE_PATCHES.get((major, minor), 0)
