"""Settings for listeners, connections and the memory for requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from millstream.broker.config import listener_address as listener
from millstream.metadata.cluster_record import Endpoint
from millstream.model.bootstrap import SERVERS_DEFAULT
from millstream.model.definition import ConfigScope, ConfigType, setting
from millstream.model.security_protocol import SecurityProtocol
from millstream.model.sentinel import INT32_MAX

_STRING, _INT = ConfigType.STRING, ConfigType.INT
_LONG, _LIST = ConfigType.LONG, ConfigType.LIST
_MIB: Final = 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSection:
    """Listeners and connections. `config.network`."""

    # Listeners.
    listeners: tuple[str, ...] = setting(
        _LIST,
        (f"PLAINTEXT://{SERVERS_DEFAULT}",),
        "Addresses to listen on, as NAME://host:port; an empty host is every address.",
        check=listener.check_listeners,
    )
    advertised_listeners: tuple[str, ...] | None = setting(
        _LIST,
        None,
        "Addresses that clients connect to, where they differ from listeners.",
        check=listener.check_advertised,
    )
    listener_security_protocol_map: tuple[str, ...] = setting(
        _LIST,
        tuple(f"{protocol.value}:{protocol.value}" for protocol in SecurityProtocol),
        "Security protocol of each listener name, as NAME:PROTOCOL.",
        check=listener.check_protocols,
        shown_kind=_STRING,
    )
    inter_broker_listener_name: str | None = setting(
        _STRING,
        None,
        "Listener for connections between brokers; by default the first one.",
    )
    http_listen: str = setting(
        _STRING,
        "127.0.0.1:9644",
        "Address of the HTTP server for metrics and health checks, as host:port; empty for none.",
        check=listener.check_http,
    )
    http_bearer_token: str | None = setting(
        ConfigType.PASSWORD,
        None,
        "Token that clients of the HTTP server send as `Authorization: Bearer TOKEN`. With a token,"
        " or with http.ssl.client.auth, only /healthz is served to everyone. A broker whose"
        " listeners all have TLS or SASL, or whose authorizer enforces ACLs, serves nothing else"
        " without one of them.",
    )
    http_bearer_token_file: str | None = setting(
        _STRING, None, "File that holds the token for the HTTP server. A replaced file applies."
    )
    http_ssl_keystore_location: str | None = setting(
        _STRING,
        None,
        "PEM file with the private key and the certificate chain of the HTTP server, which then"
        " speaks HTTPS only.",
    )
    http_ssl_truststore_location: str | None = setting(
        _STRING,
        None,
        "PEM file with the authorities, and revocation lists, for certificates of HTTP clients.",
    )
    http_ssl_client_auth: str = setting(
        _STRING,
        "none",
        "Whether HTTP clients present a certificate. With requested, a client has a certificate, or"
        " sends the token, or gets /healthz only.",
        choices=("none", "requested", "required"),
    )

    # Connections and memory for requests.
    socket_request_max_bytes: int = setting(
        _INT,
        100 * _MIB,
        "Largest request accepted; the connection of a larger one is closed.",
        minimum=1,
    )
    socket_listen_backlog_size: int = setting(
        _INT, 1024, "Number of connections that may wait to be accepted.", minimum=1
    )
    socket_send_buffer_bytes: int = setting(
        _INT, -1, "Send buffer of the sockets; -1 uses the system's default.", minimum=-1
    )
    socket_receive_buffer_bytes: int = setting(
        _INT, -1, "Receive buffer of the sockets; -1 uses the system's default.", minimum=-1
    )
    max_connections: int = setting(
        _INT,
        10_000,
        "Maximum number of connections over all listeners, or of one listener.",
        minimum=0,
        scope=ConfigScope.CLUSTER_WIDE,
        is_per_listener=True,
    )
    max_connections_per_ip: int = setting(
        _INT,
        INT32_MAX,
        "Maximum number of connections from one address.",
        minimum=0,
        scope=ConfigScope.CLUSTER_WIDE,
    )
    max_connections_per_ip_overrides: tuple[str, ...] = setting(
        _LIST,
        (),
        "Maximum number of connections from particular addresses, as address:count.",
        check=listener.check_overrides,
        shown_kind=_STRING,
        scope=ConfigScope.CLUSTER_WIDE,
    )
    connections_max_idle_ms: int = setting(
        _LONG, 600_000, "Idle time after which a connection is closed; -1 is never.", minimum=-1
    )
    connection_partial_request_timeout_ms: int = setting(
        _LONG, 30_000, "Time that a request may take to arrive in full.", minimum=1
    )
    connection_write_timeout_ms: int = setting(
        _LONG, 60_000, "Time for which a client may leave its responses unread.", minimum=1
    )
    connection_max_inflight_requests: int = setting(
        _INT,
        1000,
        "Requests in progress on one connection; above it the connection is not read.",
        minimum=1,
    )
    connection_max_inflight_bytes: int = setting(
        _LONG,
        128 * _MIB,
        "Bytes of responses pending on one connection; above it the connection is not read.",
        minimum=1,
    )
    connection_max_requests_per_pass: int = setting(
        _INT,
        100,
        "Requests of one connection that are handled before those of other connections.",
        minimum=1,
    )
    queued_max_request_bytes: int = setting(
        _LONG,
        256 * _MIB,
        "Memory for requests of all connections; while it is used up no connection is read.",
        minimum=1,
    )
    shutdown_drain_timeout_ms: int = setting(
        _LONG,
        30_000,
        "Time for which a shutdown waits for requests in progress.",
        minimum=0,
    )

    #: Advertised to clients for a listener on every address. Not a setting.
    hostname: str = "localhost"

    @property
    def listen_endpoints(self) -> tuple[Endpoint, ...]:
        """Addresses to listen on; port 0 is any free port."""
        return listener.parse_listeners(self.listeners)

    def advertised_endpoints(self, ports: Mapping[str, int]) -> tuple[Endpoint, ...]:
        """Return the address of each listener for clients, given the ports that were bound."""
        advertised = listener.parse_listeners(self.advertised_listeners or ())
        by_name = {endpoint.listener_name: endpoint for endpoint in advertised}
        found: list[Endpoint] = []
        for bound in self.listen_endpoints:
            endpoint = by_name.get(bound.listener_name, bound)
            host = self.hostname if endpoint.host in listener.WILDCARD_HOSTS else endpoint.host
            port = endpoint.port or ports[bound.listener_name]
            found.append(Endpoint(bound.listener_name, host, port))
        return tuple(found)

    @property
    def security_protocols(self) -> dict[str, SecurityProtocol]:
        """The security protocol of each listener name. A listener may be named after its
        protocol."""
        named = {protocol.value: protocol for protocol in SecurityProtocol}
        return named | listener.parse_protocols(self.listener_security_protocol_map)

    @property
    def listener_protocols(self) -> dict[str, SecurityProtocol]:
        """The security protocol of each listener that this broker has."""
        protocols = self.security_protocols
        names = [endpoint.listener_name for endpoint in self.listen_endpoints]
        return {name: protocols[name] for name in names}

    @property
    def inter_broker_listener(self) -> str:
        """Name of the listener for connections between brokers."""
        return self.inter_broker_listener_name or self.listen_endpoints[0].listener_name

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Host and port of the HTTP server; None if there is none."""
        return listener.parse_address(self.http_listen) if self.http_listen else None

    @property
    def connections_per_ip_overrides(self) -> dict[str, int]:
        """Maximum number of connections by address."""
        pairs = listener.parse_pairs(self.max_connections_per_ip_overrides, "address:count")
        return {address: int(limit) for address, limit in pairs.items()}
