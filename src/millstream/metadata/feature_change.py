"""Changes the finalized levels of features by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from millstream.metadata import cluster_record as records
from millstream.metadata.catalog import Catalog
from millstream.metadata.store.port import Compare, Put
from millstream.model.error import BrokerError, ErrorCode

#: Returns the levels to store, from the present ones; may raise BrokerError.
DecideLevels: TypeAlias = Callable[[Mapping[str, int]], Mapping[str, int]]

_ATTEMPTS_MAX: Final = 16


async def alter_features(catalog: Catalog, decide: DecideLevels) -> None:
    """Store the levels that `decide` returns, all or none. Return when the image has them."""
    for _ in range(_ATTEMPTS_MAX):
        before = catalog.image.features
        levels = decide(before.levels)
        expected = Compare(records.FEATURES_KEY, before.revision)
        put = Put(records.FEATURES_KEY, records.encode_features(levels))
        if await catalog.transact([expected], [put]) is not None:
            return
    raise BrokerError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"other changes of the features came first {_ATTEMPTS_MAX} times; try again",
    )
