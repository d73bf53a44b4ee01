"""Namespaces for a run: network, mounts and processes that end with it.

Everything that a run creates (namespaces, virtual cables, small disks, brokers) is inside
namespaces that `unshare` creates, as root or, if the system allows it, as any user. When the run
ends or is killed, the kernel removes all of it.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence

_TOOLS = ("unshare", "ip", "mount")
#: Creates everything that a run needs, to detect missing permissions early.
_TRIAL = (
    "mount -t tmpfs none /run && ip netns add a"
    " && ip link add v-a type veth peer name eth0 netns a"
    " && ip rule add from 10.77.0.2 to 10.77.0.3 blackhole"
    " && echo 1 > /proc/sys/net/ipv4/ip_forward"
)


def enclosed(command: Sequence[str]) -> list[str]:
    """Return the command wrapped in namespaces of its own."""
    flags = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.getuid() != 0:
        flags.append("--map-root-user")
    return ["unshare", *flags, *command]


@functools.cache
def obstacle() -> str:
    """Return why this machine cannot create the namespaces; empty if it can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not installed"
    trial = subprocess.run(
        enclosed(["sh", "-c", _TRIAL]), capture_output=True, text=True, timeout=60, check=False
    )
    if trial.returncode == 0:
        return ""
    return f"namespaces cannot be created here: {' '.join(trial.stderr.split())}"
