"""Settings changed at run time, brought to the parts of the broker that run with them.

Each part is given its own options, made from the settings by a function of `options`. Where the
part is built, that function and the part's way to take new options are added here. So a setting
that reaches a part at the start reaches it at run time as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from millstream.broker.config.broker_config import BrokerConfig, ConfigError
from millstream.metadata.image import ClusterImage

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Reconfiguration:
    """The settings in force, and who has to know when they change. Event loop only."""

    __slots__ = ("_appliers", "_static", "config")

    def __init__(self, static: BrokerConfig) -> None:
        #: As the operator gave them; settings changed at run time go on top.
        self._static = static
        self.config = static
        #: Called with the new settings, in the order in which they were added.
        self._appliers: list[Callable[[BrokerConfig], None]] = []

    def add(
        self,
        make: Callable[[BrokerConfig], _T],
        apply: Callable[[_T], None],
        built_with: BrokerConfig,
    ) -> None:
        """Call `apply` with what `make` makes of the settings, each time that this changes.

        `built_with` are the settings that the part has by now. If those in force are others, they
        are applied at once: settings changed at run time also count after a restart."""
        present = make(built_with)

        def apply_changed(config: BrokerConfig) -> None:
            nonlocal present
            made = make(config)
            if made != present:
                present = made
                apply(made)

        apply_changed(self.config)
        self._appliers.append(apply_changed)

    def load(self, image: ClusterImage) -> BrokerConfig:
        """Return the settings with those that the image has on top. Raises ConfigError."""
        self.config = self._static.with_dynamic(
            image.default_broker_configs, image.broker_configs.get(self._static.node_id, {})
        )
        return self.config

    def follow(self, image: ClusterImage) -> None:
        """Apply settings that were changed at run time; those that can't be used are logged."""
        try:
            config = self.load(image)
        except ConfigError as error:
            _log.error("settings changed at run time are not applied: %s", error)
            return
        for apply in self._appliers:
            apply(config)
