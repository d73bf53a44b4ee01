"""Handles data loss as `failOnDataLoss` says: fail the query, or log a warning and continue."""

from __future__ import annotations

import logging

from millstream.spark.error import DataLoss

_logger = logging.getLogger(__name__)


class DataLossPolicy:
    """Fails the query or logs the lost offsets. Can be pickled."""

    def __init__(self, is_fatal: bool) -> None:
        self._is_fatal = is_fatal

    def report(self, what: str) -> None:
        """Report lost records. `what` is a sentence that names topic, partition and offsets.

        Raises DataLoss if data loss is fatal."""
        if self._is_fatal:
            raise DataLoss(
                f"{what} The query stops because of this data loss; with failOnDataLoss=false it"
                " continues with the remaining records"
            )
        _logger.warning("data loss, and failOnDataLoss is false: %s", what)
