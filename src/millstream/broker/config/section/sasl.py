"""Settings for authentication by SASL: mechanisms, logins, OAuth tokens, delegation tokens."""

from __future__ import annotations

import dataclasses
from typing import Final

from millstream.model.definition import ConfigType, setting
from millstream.model.jaas import check_jaas
from millstream.model.sentinel import INT32_MAX
from millstream.security.sasl.exchange import SCRAM_MECHANISMS, Mechanism

_STRING, _INT, _LONG = ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_LIST, _PASSWORD = ConfigType.LIST, ConfigType.PASSWORD
_HOUR_MS: Final = 3_600_000
_URL_SCHEMES: Final = ("https://", "http://", "file://")


def _check_peer_mechanism(value: str) -> None:
    _check_mechanisms((value,))
    if value == Mechanism.OAUTHBEARER:
        raise ValueError("PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512: brokers have no OAuth tokens")


def _check_mechanisms(value: tuple[str, ...]) -> None:
    allowed = ", ".join(Mechanism)
    if "GSSAPI" in value:
        raise ValueError(f"{allowed}; GSSAPI (Kerberos) is not supported")
    if not value or not set(value) <= set(Mechanism):
        raise ValueError(allowed)


def _check_url(value: str) -> None:
    if not value.startswith(_URL_SCHEMES):
        raise ValueError("a URL that starts with https://, http:// or file://")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SaslSection:
    """Authentication by SASL. `config.sasl`."""

    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        _LIST,
        SCRAM_MECHANISMS,
        "SASL mechanisms that clients may use: " + ", ".join(Mechanism) + ".",
        check=_check_mechanisms,
        is_per_listener=True,
    )
    sasl_mechanism_inter_broker_protocol: str = setting(
        _STRING,
        Mechanism.SCRAM_SHA_512,
        "SASL mechanism with which this broker logs in to other brokers.",
        check=_check_peer_mechanism,
    )
    sasl_jaas_config: str | None = setting(
        _PASSWORD,
        None,
        "Login module with options: username and password of this broker, and for PLAIN"
        " user_NAME=PASSWORD for each user.",
        check=check_jaas,
        is_per_listener=True,
        is_per_mechanism=True,
    )
    bootstrap_users_file: str | None = setting(
        _STRING,
        None,
        "File with a NAME:PASSWORD line for each user to create at a start. Users that exist are"
        " not changed.",
    )

    # Logins.
    sasl_server_max_receive_size: int = setting(
        _INT, 524_288, "Largest request before a client is authenticated.", minimum=1
    )
    connection_authentication_timeout_ms: int = setting(
        _LONG, 30_000, "Time that a client has to log in on a new connection.", minimum=1
    )
    connection_failed_authentication_delay_ms: int = setting(
        _INT, 100, "Time by which the response to a failed login is delayed.", minimum=0
    )
    max_failed_authentications_per_ip: int = setting(
        _INT,
        100,
        "Failed logins from one address in a minute, above which its further logins are slowed"
        " down to a few in a second.",
        minimum=1,
        maximum=INT32_MAX,
    )
    connections_max_reauth_ms: int = setting(
        _LONG,
        0,
        "Time after which a client must log in again on its connection; 0 is never.",
        minimum=0,
        is_per_listener=True,
        is_per_mechanism=True,
    )

    # OAuth tokens.
    sasl_oauthbearer_jwks_endpoint_url: str | None = setting(
        _STRING,
        None,
        "URL of the JSON Web Key Set that verifies OAuth tokens: https, http or file.",
        check=_check_url,
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        _LONG, _HOUR_MS, "Time after which the key set is fetched again.", minimum=1
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = setting(
        _LONG, 100, "Time before a failed fetch of the key set is retried at first.", minimum=1
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = setting(
        _LONG,
        10_000,
        "Longest time before a failed fetch is retried, and shortest time between two fetches for"
        " unknown keys.",
        minimum=1,
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        _LIST, (), "Audiences of which an OAuth token must have one. Required for OAUTHBEARER."
    )
    sasl_oauthbearer_expected_issuer: str | None = setting(
        _STRING, None, "Issuer that an OAuth token must have. Required for OAUTHBEARER."
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        _INT, 30, "Difference of clocks that is allowed in the times of an OAuth token.", minimum=0
    )
    sasl_oauthbearer_sub_claim_name: str = setting(
        _STRING, "sub", "Claim of an OAuth token that holds the user name."
    )
    sasl_oauthbearer_scope_claim_name: str = setting(
        _STRING, "scope", "Claim of an OAuth token that holds its scopes."
    )
    sasl_oauthbearer_groups_claim_name: str = setting(
        _STRING,
        "groups",
        "Claim of an OAuth token that holds the user's groups. ACLs of Group:NAME apply to them.",
    )
    sasl_oauthbearer_required_scope: tuple[str, ...] = setting(
        _LIST, (), "Scopes that an OAuth token must have."
    )

    # Delegation tokens.
    delegation_token_secret_key: str | None = setting(
        _PASSWORD,
        None,
        "Secret from which delegation tokens are computed: the same on all brokers. Without it"
        " there are no delegation tokens.",
    )
    delegation_token_max_lifetime_ms: int = setting(
        _LONG, 7 * 24 * _HOUR_MS, "Longest lifetime of a delegation token.", minimum=1
    )
    delegation_token_expiry_time_ms: int = setting(
        _LONG, 24 * _HOUR_MS, "Lifetime of a delegation token until it is renewed.", minimum=1
    )
    delegation_token_expiry_check_interval_ms: int = setting(
        _LONG, _HOUR_MS, "Time between checks for expired delegation tokens.", minimum=1
    )
