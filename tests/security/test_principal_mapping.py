"""Mapping rules: the cases are those of Kafka's documentation, and their corners."""

from __future__ import annotations

import pytest

from millstream.security.principal_mapping import PrincipalMapping, UnmappedNameError

SERVICE = "CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown"
ADMIN = "CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown"
RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    " RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    " RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U,"
    " DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("DEFAULT", SERVICE, SERVICE),
        (RULES, SERVICE, "serviceuser"),
        (RULES, ADMIN, "adminuser@admin"),
        (RULES, "OU=x,cn=bob", "BOB"),
        (RULES, "OU=x", "OU=x"),
        ("RULE:^CN=(.*?)$/$1@$4/", "CN=a", "a@$4"),
        ("RULE:^CN=(.*?)$/$12/", "CN=a", "a2"),
        (r"RULE:^CN=(a)\/b$/$1\/\$x/", "CN=a/b", "a/$x"),
        ("RULE:^CN=(.*)$/$0/", "CN=a", "CN=a"),
        ("RULE:^CN=(.*)$/user/", "CN=a", "user"),
        ("RULE:^CN=a{1,2}$/user/,DEFAULT", "CN=aa", "user"),
    ],
)
def test_names(rules: str, name: str, expected: str) -> None:
    assert PrincipalMapping(rules).name_of(name) == expected


@pytest.mark.parametrize(
    "rules", ["RULE:a/b", "default", "RULE:(/x/", "DEFAULT;DEFAULT", "RULE:a//X"]
)
def test_invalid_rules(rules: str) -> None:
    with pytest.raises(ValueError, match="DEFAULT, or rules such as"):
        PrincipalMapping(rules)


@pytest.mark.parametrize("rules", ["", "RULE:^OU=.*$/x/", "RULE:a/b/"])
def test_a_name_that_no_rule_matches(rules: str) -> None:
    with pytest.raises(UnmappedNameError, match="no rule of"):
        PrincipalMapping(rules).name_of("CN=a")
