"""The file with the first users."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from millstream.broker.config.config_source import ConfigError
from millstream.broker.login.bootstrap_user import create_bootstrap_users, parse_users
from millstream.env.clock import SystemClock
from millstream.env.disk import SystemDisk
from millstream.env.supervisor import Supervisor
from millstream.metadata.catalog import Catalog
from millstream.metadata.store.memory import MemoryStore
from millstream.model.config import TopicConfig
from millstream.security.sasl.exchange import Mechanism
from millstream.security.sasl.scram import is_password_valid


def test_lines() -> None:
    text = "# users\n\nalice:pen:cil\n bob : x \n"
    assert parse_users(text, "f") == {"alice": "pen:cil", "bob": " x "}


@pytest.mark.parametrize("text", ["alice", "alice:", ":x", "a:1\na:secret"])
def test_wrong_lines_are_named_without_their_text(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^f: line \d: ") as caught:
        parse_users(text, "f")
    assert "secret" not in str(caught.value)


def test_users_that_exist_are_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "users"

    async def run() -> None:
        catalog = await Catalog.open(
            MemoryStore(SystemClock()).connect(),
            supervisor=Supervisor(),
            random=Random(1),
            topic_defaults=TopicConfig(),
        )
        for text in ("alice:one\n", "alice:two\nbob:three\n"):
            path.write_text(text)
            await create_bootstrap_users(path, SystemDisk(), catalog, Random(1), has_threads=False)
            async with asyncio.timeout(10):
                while len(catalog.image.users) < text.count("\n"):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        users = catalog.image.users
        assert set(users) == {"alice", "bob"}
        for name, password in (("alice", "one"), ("bob", "three")):
            for mechanism in (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512):
                assert is_password_valid(mechanism, users[name][mechanism], password)
        await catalog.close()

    asyncio.run(run())


def test_a_missing_file_stops_the_start(tmp_path: Path) -> None:
    async def run() -> None:
        await create_bootstrap_users(
            tmp_path / "missing",
            SystemDisk(),
            None,
            Random(1),
            has_threads=False,  # type: ignore[arg-type]
        )

    with pytest.raises(ConfigError, match=r"bootstrap\.users\.file"):
        asyncio.run(run())
