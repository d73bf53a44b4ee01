"""Settings for membership in the cluster and for the metadata store."""

from __future__ import annotations

import dataclasses

from millstream.broker.config import listener_address as listener
from millstream.model.definition import ConfigType, setting

_STRING, _INT = ConfigType.STRING, ConfigType.INT


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSection:
    """Membership and the metadata store. `config.cluster`."""

    broker_rack: str | None = setting(
        _STRING, None, "Rack of the broker; the replicas of a partition are spread over racks."
    )
    broker_session_timeout_ms: int = setting(
        _INT,
        3000,
        "Time without a sign of life after which the cluster considers the broker dead.",
        minimum=100,
    )
    initial_broker_registration_timeout_ms: int = setting(
        _INT,
        60_000,
        "Time for which a starting broker retries to join the cluster of its data directory, while"
        " the metadata store is unreachable or its node id is taken.",
        minimum=0,
    )
    cluster_settle_ms: int = setting(
        _INT,
        10_000,
        "Time to wait for more brokers, while fewer than three are known, before a topic is created"
        " with a default number of replicas. It counts from the start of this broker, or from when"
        " this broker last saw a new one.",
        minimum=0,
    )
    metadata_store: str = setting(
        _STRING,
        listener.EMBEDDED_STORE,
        "Metadata store of the cluster: sqlite, in the data directory of a single broker, or"
        " etcd://host:port,host:port/prefix, with etcds:// for TLS.",
        check=listener.check_store,
    )
    metadata_etcd_username: str | None = setting(_STRING, None, "User name for etcd.")
    metadata_etcd_password_file: str | None = setting(
        _STRING, None, "File that holds the password for etcd."
    )
    metadata_etcd_ca_file: str | None = setting(
        _STRING, None, "CA certificates to verify etcd with, instead of the system's."
    )
    metadata_etcd_certificate_file: str | None = setting(
        _STRING, None, "Client certificate for etcd."
    )
    metadata_etcd_key_file: str | None = setting(
        _STRING, None, "Key of the client certificate, if it is in a separate file."
    )
