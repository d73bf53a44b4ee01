"""Opens the metadata store that the settings name: the embedded one, or etcd.

Owns the choice of the store, and the errors of files that the settings name. etcd's client is
imported only where it is used: the import takes as long as the rest of the broker.
"""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from millstream.broker.config.broker_config import BrokerConfig, ConfigError
from millstream.broker.config.listener_address import EMBEDDED_STORE
from millstream.broker.lifecycle.environment import Environment
from millstream.env.disk import Disk
from millstream.metadata.store.etcd.address import EtcdOptions, parse_etcd_address
from millstream.metadata.store.port import MetadataStore
from millstream.metadata.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from millstream.metadata.store.etcd.etcd_store import EtcdStore

METADATA_FILE: Final = "metadata.db"


async def open_store(config: BrokerConfig, environment: Environment) -> MetadataStore:
    """Return the store that the settings name.

    Raises MetadataStoreError, or ConfigError for a bad file that the settings name. Both have a
    sentence for the operator."""
    clock = environment.clock
    if config.cluster.metadata_store == EMBEDDED_STORE:
        return await SqliteStore.open(config.log.data_dir / METADATA_FILE, clock)
    options = etcd_options(config, environment.disk)
    module = await asyncio.to_thread(
        importlib.import_module, "millstream.metadata.store.etcd.etcd_store"
    )
    store = cast("type[EtcdStore]", module.EtcdStore)
    return await store.open(options, clock, environment.random, environment.supervisor)


def etcd_options(config: BrokerConfig, disk: Disk) -> EtcdOptions:
    """Return the options of etcd's client. Raises ConfigError."""
    if (config.cluster.metadata_etcd_username is None) != (
        config.cluster.metadata_etcd_password_file is None
    ):
        raise ConfigError("metadata.etcd.username and metadata.etcd.password.file belong together")
    return EtcdOptions(
        address=parse_etcd_address(config.cluster.metadata_store),
        ca_file=_path(config.cluster.metadata_etcd_ca_file),
        certificate_file=_path(config.cluster.metadata_etcd_certificate_file),
        key_file=_path(config.cluster.metadata_etcd_key_file),
        username=config.cluster.metadata_etcd_username,
        password=_read_password(config.cluster.metadata_etcd_password_file, disk),
    )


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _read_password(file: str | None, disk: Disk) -> str | None:
    if file is None:
        return None
    try:
        return disk.read(Path(file)).decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"metadata.etcd.password.file = {file!r} cannot be read: {error}"
        ) from error
