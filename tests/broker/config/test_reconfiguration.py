from __future__ import annotations

import logging

import pytest

from millstream.broker.config import part_options as options
from millstream.broker.config.broker_config import BrokerConfig, ConfigError
from millstream.broker.config.reconfiguration import Reconfiguration
from millstream.metadata.image import ClusterImage
from millstream.model.map import Map

EXPIRATION, CONNECTIONS = "producer.id.expiration.ms", "max.connections"


def image(own: dict[str, str], **defaults: str) -> ClusterImage:
    named = {name.replace("_", "."): value for name, value in defaults.items()}
    return ClusterImage(default_broker_configs=Map(named), broker_configs=Map({1: Map(own)}))


def test_a_part_is_configured_when_its_own_options_change() -> None:
    static = BrokerConfig.load(flags={EXPIRATION: "5"})
    settings = Reconfiguration(static)
    applied: list[int] = []

    def apply(made: object) -> None:
        assert made == options.log_options(settings.config)
        applied.append(settings.config.log.producer_id_expiration_ms)

    settings.add(options.log_options, apply, static)
    assert applied == []
    settings.update_image(image({}, producer_id_expiration_ms="6"))
    settings.update_image(image({}, producer_id_expiration_ms="6", max_connections="7"))
    assert (applied, settings.config.network.max_connections) == ([6], 7)
    settings.update_image(image({EXPIRATION: "8"}, producer_id_expiration_ms="6"))
    settings.update_image(image({}))
    assert applied == [6, 8, 5]


def test_a_part_that_was_built_with_other_settings_is_configured_at_once() -> None:
    static = BrokerConfig.load()
    settings = Reconfiguration(static)
    settings.load(image({CONNECTIONS: "3"}))
    applied: list[int] = []
    settings.add(options.limits, lambda limits: applied.append(limits.connections_max), static)
    assert applied == [3]


def test_invalid_settings_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    settings = Reconfiguration(BrokerConfig.load())
    applied: list[object] = []
    settings.add(options.limits, applied.append, settings.config)
    with caplog.at_level(logging.ERROR):
        settings.update_image(image({CONNECTIONS: "none"}))
    assert applied == []
    assert "are not applied: run-time config of the broker: max.connections" in caplog.text
    with pytest.raises(ConfigError):
        settings.load(image({"no.such": "1"}))
