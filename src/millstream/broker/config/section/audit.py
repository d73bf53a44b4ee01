"""Settings for the audit trail."""

from __future__ import annotations

import dataclasses
from typing import Final

from millstream.model.definition import ConfigType, setting

_BOOLEAN, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG
_STRING = ConfigType.STRING
_MIB: Final = 1024 * 1024
_DAY_MS: Final = 86_400_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuditSection:
    """The audit trail. `config.audit`."""

    audit_enable: bool = setting(
        _BOOLEAN,
        False,
        "Record logins, denied requests and changes in the topic __audit.",
    )
    audit_topic_retention_ms: int = setting(
        _LONG, 30 * _DAY_MS, "Retention of the topic __audit, when it is created.", minimum=-1
    )
    audit_queue_max_events: int = setting(
        _INT, 10_000, "Events that may wait to be written; further ones are dropped.", minimum=1
    )
    audit_file: str | None = setting(
        _STRING, None, "File that gets the events too, one in JSON on each line."
    )
    audit_file_max_bytes: int = setting(
        _LONG, 100 * _MIB, "Size at which the audit file is renamed and begun again.", minimum=1
    )
    audit_file_max_files: int = setting(
        _INT, 10, "Number of audit files, the present one included.", minimum=1
    )
