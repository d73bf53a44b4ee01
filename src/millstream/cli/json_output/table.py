"""The JSON output of every command, by its words without `millstream`.

The documentation is generated from this table. A command that is not in it prints no data.
"""

from __future__ import annotations

from typing import Final

from millstream.cli.json_output.acl_keys import ACL
from millstream.cli.json_output.cluster_keys import CLUSTER
from millstream.cli.json_output.data_keys import DATA
from millstream.cli.json_output.form import JsonOutput
from millstream.cli.json_output.group_keys import GROUP
from millstream.cli.json_output.topic_keys import TOPIC
from millstream.cli.json_output.user_keys import USER

JSON_OUTPUTS: Final[dict[str, JsonOutput]] = {
    **TOPIC,
    **GROUP,
    **CLUSTER,
    **DATA,
    **USER,
    **ACL,
}
