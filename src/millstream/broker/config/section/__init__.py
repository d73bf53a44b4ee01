"""Sections of the broker's settings: one frozen dataclass for each part of the broker.

A section declares names, types, defaults and limits. `broker_config` reads the values from the
configured sources, and `part_options` translates a section into the options of its part."""
