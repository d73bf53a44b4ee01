"""Applies settings that are changed at run time to the parts of the broker.

A part of the broker does not read settings. It has options of its own, which a function of
`part_options` makes from the sections of `BrokerConfig`. Where a part is built, the server
registers that function together with the part's `configure`. So a setting that reaches a part at
the start also reaches it when the setting changes at run time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from millstream.broker.config.broker_config import BrokerConfig, ConfigError
from millstream.metadata.image import ClusterImage

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class Reconfiguration:
    """The settings in force, and the parts to configure when they change. Event loop only."""

    __slots__ = ("_appliers", "_static", "config")

    def __init__(self, static: BrokerConfig) -> None:
        #: The settings of file, environment and command line; run-time changes go on top.
        self._static = static
        self.config = static
        #: Called with the new settings, in the order of registration.
        self._appliers: list[Callable[[BrokerConfig], None]] = []

    def add(
        self,
        make: Callable[[BrokerConfig], _T],
        configure: Callable[[_T], None],
        built_with: BrokerConfig,
    ) -> None:
        """Call `configure(make(config))` whenever that value changes.

        `built_with` holds the settings that the part was built with. If the settings in force
        differ, `configure` is called at once: run-time changes also apply after a restart."""
        present = make(built_with)

        def apply_changed(config: BrokerConfig) -> None:
            nonlocal present
            made = make(config)
            if made != present:
                present = made
                configure(made)

        apply_changed(self.config)
        self._appliers.append(apply_changed)

    def load(self, image: ClusterImage) -> BrokerConfig:
        """Return the static settings with the run-time settings of `image` on top. Raises
        ConfigError."""
        self.config = self._static.with_dynamic(
            image.default_broker_configs, image.broker_configs.get(self._static.node_id, {})
        )
        return self.config

    def update_image(self, image: ClusterImage) -> None:
        """Apply the run-time settings of `image`. Settings that are not valid are logged and change
        nothing."""
        try:
            config = self.load(image)
        except ConfigError as error:
            _logger.error("settings changed at run time are not applied: %s", error)
            return
        for apply in self._appliers:
            apply(config)
