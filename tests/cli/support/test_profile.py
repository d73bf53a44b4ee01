from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cli.support.profile import Profile, Profiles, is_secret


def test_a_file_keeps_all_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_PROFILE_FILE", str(tmp_path / "deep" / "profiles.toml"))
    profiles = Profiles(
        {
            "a.b": Profile("h:1", None, {"sasl.password": 'quo"ted\\ \x7f\n ü'}),
            "empty": Profile(),
        },
        "a.b",
    )
    profiles.save()
    assert Profiles.load() == profiles


def test_no_file_means_no_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_PROFILE_FILE", str(tmp_path / "none.toml"))
    assert Profiles.load() == Profiles()


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("sasl.password", True),
        ("ssl.key.password", True),
        ("ssl.key.pem", True),
        ("sasl.oauthbearer.client.secret", True),
        ("sasl.jaas.config", True),
        ("sasl.oauthbearer.assertion.private.key.passphrase", True),
        ("sasl.oauthbearer.token.endpoint.url", False),
        ("sasl.username", False),
        ("ssl.key.location", False),
        ("security.protocol", False),
    ],
)
def test_secrets(name: str, secret: bool) -> None:
    assert is_secret(name) is secret
