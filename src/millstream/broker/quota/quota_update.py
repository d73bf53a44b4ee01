"""Applies the quotas of the metadata to the parts of the broker that enforce them."""

from __future__ import annotations

from millstream.broker.context import Services
from millstream.broker.quota.client_throttle import ClientThrottle
from millstream.metadata.image import ClusterImage, ImageDelta
from millstream.net.gate import Gate
from millstream.security.quota.connection_rate import ConnectionRateOptions, ConnectionRates


class QuotaUpdates:
    """Applies changes of quotas. Event loop only."""

    __slots__ = ("_gate", "_options", "_rates", "_services", "_throttle")

    def __init__(
        self,
        services: Services,
        throttle: ClientThrottle,
        gate: Gate,
        options: ConnectionRateOptions,
    ) -> None:
        self._services = services
        self._throttle = throttle
        self._gate = gate
        self._options = options
        self._rates = ConnectionRates(options)

    def configure(self, options: ConnectionRateOptions) -> None:
        """Apply settings that were changed at run time."""
        self._options = options
        self._rates.configure(options)
        self._set_rates()

    def apply_delta(self, image: ClusterImage, delta: ImageDelta) -> None:
        if delta.quotas:
            self.apply(image)

    def apply(self, image: ClusterImage) -> None:
        """Enforce the quotas of an image from now on."""
        limiter = self._throttle.limiter
        limiter.set_quotas(image.quotas)
        self._services.quotas = self._throttle if limiter.table.has_client_quotas else None
        self._rates.table = limiter.table
        self._set_rates()

    def _set_rates(self) -> None:
        """Let the gate count new connections only if there is a limit on them."""
        is_limited = self._options.is_limited or self._rates.table.has_address_quotas
        self._gate.rates = self._rates if is_limited else None
