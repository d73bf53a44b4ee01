"""The JSON output of `millstream user`."""

from __future__ import annotations

from typing import Final

from millstream.cli.json_output.form import JsonOutput, rows
from millstream.cli.json_output.topic_keys import RESULT

_RESULT: Final = {"user": "The user.", **RESULT}

USER: Final[dict[str, JsonOutput]] = {
    "user create": rows(_RESULT),
    "user list": rows(
        {
            "user": "The user.",
            "mechanism": "The SCRAM mechanism of a credential.",
            "iterations": "How often the password is hashed.",
        }
    ),
    "user passwd": rows(_RESULT),
    "user delete": rows(_RESULT),
}
