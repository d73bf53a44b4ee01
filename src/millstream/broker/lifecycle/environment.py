"""The seams of one broker: clock, disk, network, randomness, and the owner of its tasks.

The process passes the system's; the simulator and some tests pass others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.broker.config.broker_config import BrokerConfig
from millstream.env.clock import Clock, SystemClock
from millstream.env.disk import Disk, SystemDisk
from millstream.env.network import Network, SystemNetwork
from millstream.env.random import Random, system_random
from millstream.env.supervisor import Supervisor
from millstream.metadata.store.port import MetadataStore


@dataclass(frozen=True, slots=True)
class Environment:
    """The seams that a broker runs on."""

    clock: Clock
    disk: Disk
    network: Network
    random: Random
    #: Replaces the metadata store that the settings name. The broker closes it when it stops.
    store: MetadataStore | None = None
    #: Whether logs may be flushed in a thread. Virtual time has no threads.
    has_threads: bool = True
    #: Owns the background tasks of this broker.
    supervisor: Supervisor = field(default_factory=Supervisor)


def system_environment(config: BrokerConfig) -> Environment:
    """Return the system's clock, disk, network and randomness."""
    return Environment(
        SystemClock(),
        SystemDisk(),
        SystemNetwork(
            config.network.socket_listen_backlog_size,
            send_buffer_bytes=config.network.socket_send_buffer_bytes,
            receive_buffer_bytes=config.network.socket_receive_buffer_bytes,
        ),
        system_random(),
    )
