"""What happens when records that a query was to read are gone: `failOnDataLoss`."""

from __future__ import annotations

from millstream.spark.error import DataLoss, logger


class DataLossPolicy:
    """Fails the query, or lets it go on and says what was skipped. Can be pickled."""

    def __init__(self, is_fatal: bool) -> None:
        self._is_fatal = is_fatal

    def report(self, what: str) -> None:
        """`what` is a sentence that names topic, partition and offsets. Raises DataLoss if it is
        fatal."""
        if self._is_fatal:
            raise DataLoss(
                f"{what} The query stops here so that nobody misses it; with failOnDataLoss=false"
                " it goes on with what there is"
            )
        logger.warning("data loss, and failOnDataLoss is false: %s", what)
