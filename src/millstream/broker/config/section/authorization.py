"""Settings for authorization: the authorizer, super users and learning mode."""

from __future__ import annotations

import dataclasses
from typing import Final

from millstream.model.definition import ConfigType, setting
from millstream.model.principal import parse_principal

_STRING, _BOOLEAN = ConfigType.STRING, ConfigType.BOOLEAN

#: Kafka's authorizer, whose name existing configurations have, and Millstream's own name.
AUTHORIZERS: Final = ("org.apache.kafka.metadata.authorizer.StandardAuthorizer", "millstream")
ENFORCE: Final = "enforce"
LEARN: Final = "learn"


def _check_authorizer(name: str) -> None:
    if name and name not in AUTHORIZERS:
        raise ValueError(f"empty, or one of {', '.join(AUTHORIZERS)}")


def _parse_super_users(text: str) -> frozenset[str]:
    return frozenset(str(parse_principal(part.strip())) for part in text.split(";") if part.strip())


def _check_super_users(text: str) -> None:
    try:
        _parse_super_users(text)
    except ValueError as error:
        raise ValueError(
            "principals that are separated by semicolons, such as User:admin;User:CN=broker"
        ) from error


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationSection:
    """Authorization. `config.authorization`."""

    authorizer_class_name: str = setting(
        _STRING,
        "",
        "The authorizer that decides what clients may do. Empty: everything is allowed.",
        check=_check_authorizer,
    )
    authorizer_mode: str = setting(
        _STRING,
        ENFORCE,
        "enforce: the authorizer denies what ACLs do not allow. learn: it allows everything and"
        " records what clients need.",
        choices=(ENFORCE, LEARN),
    )
    super_users: str = setting(
        _STRING,
        "",
        "Principals that may do everything, separated by semicolons. Brokers need to be among"
        " them, or need ClusterAction on the cluster.",
        check=_check_super_users,
        is_shown_if_set=True,
    )
    allow_everyone_if_no_acl_found: bool = setting(
        _BOOLEAN,
        False,
        "Whether everyone may use a resource that no ACL applies to.",
        is_shown_if_set=True,
    )

    @property
    def has_authorizer(self) -> bool:
        return bool(self.authorizer_class_name)

    @property
    def super_principals(self) -> frozenset[str]:
        return _parse_super_users(self.super_users)
