"""What every part of one broker is built with: environment, settings, metrics, undo stack.

Owns no behaviour. `Server` makes one `Runtime` and passes it to the modules that build the parts.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from millstream.broker.config.broker_config import BrokerConfig
from millstream.broker.config.listener_address import EMBEDDED_STORE
from millstream.broker.config.reconfiguration import Reconfiguration
from millstream.broker.lifecycle.environment import Environment
from millstream.broker.login.peer_login import peer_network
from millstream.broker.metrics.broker_metrics import Metrics
from millstream.env.network import Network
from millstream.env.supervisor import Supervisor
from millstream.model.failure import CallbackFailures
from millstream.net.gate import Gate


@dataclass(frozen=True, slots=True)
class Runtime:
    """Shared by the parts of one broker from the first step of its start."""

    #: As the operator gave it. Settings in the metadata store may differ: see `settings`.
    static_config: BrokerConfig
    environment: Environment
    settings: Reconfiguration
    metrics: Metrics
    gate: Gate
    #: Failures of callbacks, of all parts of the broker.
    failures: CallbackFailures
    #: Undoes the start, last step first, when the broker stops or a start fails halfway.
    undo: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def supervisor(self) -> Supervisor:
        return self.environment.supervisor

    @property
    def peer_network(self) -> Network:
        """The network for connections to other brokers."""
        environment = self.environment
        return peer_network(
            self.static_config, environment.network, has_threads=environment.has_threads
        )

    @property
    def is_alone(self) -> bool:
        """Whether the metadata store is embedded, so that the cluster has no other broker."""
        embedded = self.static_config.cluster.metadata_store == EMBEDDED_STORE
        return embedded and self.environment.store is None
