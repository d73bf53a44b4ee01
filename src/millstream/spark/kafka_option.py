"""The `kafka.*` options that the source, the sink and jobs share. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millstream.protocol.client_property import ClientProperties
from millstream.protocol.connection_setting import ConnectionSettings, connection_settings

PREFIX: Final = "kafka."
_CLIENT_ID: Final = "millstream-spark"


def kafka_properties(options: Mapping[str, str]) -> ClientProperties:
    """Return the `kafka.*` options without their prefix. Names are in lower case."""
    return ClientProperties.from_options(options, PREFIX)


def pop_connection(properties: ClientProperties) -> ConnectionSettings:
    """Pop the properties of connections and return their settings. Raises SettingError."""
    return connection_settings(properties, _CLIENT_ID)
