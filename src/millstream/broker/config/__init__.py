"""The broker's settings: sections, sources, layers, and changes at run time.

Owns names, validation and precedence. The effect of a setting belongs to the part of the broker
that the setting configures."""
