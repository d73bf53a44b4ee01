"""Checks of the host on which a broker runs: limits, disk, clock, memory and ports.

The checks of installed programs are in `software_check.py`.
"""

from __future__ import annotations

import ctypes
import resource
import shutil
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from millstream.cli.doctor.finding import CheckScope, CheckState, Finding
from millstream.cli.support.terminal import format_bytes

_FILES_MIN: Final = 4096
_FILES_ENOUGH: Final = 65_536
_GIB: Final = 1 << 30
_DISK_SHARE_MIN: Final = 0.05
_DISK_SHARE_ENOUGH: Final = 0.15
_MEMORY_MIN: Final = _GIB // 4
_MEMORY_ENOUGH: Final = _GIB
#: File systems on which a flush does not reach a disk of this host.
_NETWORK: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs")
_LOST_AT_RESTART: Final = ("tmpfs", "ramfs", "overlay")
_STATUS_UNSYNCHRONISED: Final = 0x40
_HTTP_S_MAX: Final = 2.0


def host_findings(data: Path, ports: tuple[int, int]) -> Iterator[Finding]:
    """Yield the finding of each check. `data` is the folder of a broker, `ports` are its ports for
    clients and for HTTP."""
    yield check_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield check_disk(data)
    yield check_file_system(data)
    yield check_clock()
    yield check_memory(*_memory())
    yield check_port(ports[0], "clients")
    yield check_port(ports[1], "metrics and health", path="/healthz")


def _finding(check: str, state: CheckState, found: str, advice: str | None = None) -> Finding:
    return Finding(CheckScope.HOST, check, state, found, advice)


def check_files(limit: int) -> Finding:
    """Check how many files a broker may open. A broker raises its limit to the hard limit."""
    name = "file limit"
    if limit == resource.RLIM_INFINITY or limit >= _FILES_ENOUGH:
        shown = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"
        return _finding(name, CheckState.HEALTHY, f"{shown} open files")
    state = CheckState.UNHEALTHY if limit < _FILES_MIN else CheckState.WARNING
    return _finding(
        name,
        state,
        f"only {limit:,} open files are allowed",
        f"Allow at least {_FILES_ENOUGH:,}: LimitNOFILE= in the systemd unit, or `ulimit -Hn`.",
    )


def _existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def check_disk(data: Path) -> Finding:
    """Check the free space for the data."""
    usage = shutil.disk_usage(_existing(data))
    share = usage.free / usage.total if usage.total else 0.0
    found = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)} at {data}"
    if share >= _DISK_SHARE_ENOUGH and usage.free >= _GIB:
        return _finding("disk space", CheckState.HEALTHY, found)
    state = (
        CheckState.UNHEALTHY if share < _DISK_SHARE_MIN or usage.free < _GIB else CheckState.WARNING
    )
    return _finding(
        "disk space",
        state,
        found,
        "Free space, add a disk, or lower retention.ms and retention.bytes of large topics.",
    )


def file_system(data: Path, mounts: str) -> str:
    """Return the type of the file system of a path. `mounts` is the text of /proc/mounts."""
    found, longest = "unknown", -1
    path = str(_existing(data).resolve())
    for line in mounts.splitlines():
        _, place, kind, *_ = line.split()
        place = place.encode().decode("unicode_escape")
        is_inside = path == place or path.startswith(place.rstrip("/") + "/")
        if is_inside and len(place) >= longest:
            found, longest = kind, len(place)
    return found


def check_file_system(data: Path) -> Finding:
    """Check that a flush reaches a disk that survives a restart."""
    name = "file system"
    try:
        kind = file_system(data, Path("/proc/mounts").read_text())
    except OSError as error:
        return _finding(name, CheckState.SKIPPED, f"/proc/mounts cannot be read: {error.strerror}")
    if kind in _NETWORK:
        advice = "Use a local disk: a network file system can lose flushed data, and is slow."
        return _finding(name, CheckState.UNHEALTHY, f"{data} is on {kind}", advice)
    if kind in _LOST_AT_RESTART:
        advice = "Use a volume or a disk: this data is lost with the host or container."
        return _finding(name, CheckState.WARNING, f"{data} is on {kind}", advice)
    return _finding(name, CheckState.HEALTHY, f"{data} is on {kind}")


def check_clock() -> Finding:
    """Check that the kernel's clock is synchronised. Retention and timestamps depend on it."""
    name = "clock"
    buffer = ctypes.create_string_buffer(512)
    try:
        result = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        result = -1
    if result < 0:
        return _finding(
            name, CheckState.SKIPPED, "the kernel does not report the state of the clock"
        )
    # struct timex: modes, offset, freq, maxerror, esterror, status.
    *_, error_us, _, status = struct.unpack_from("@illlli", buffer)
    if status & _STATUS_UNSYNCHRONISED:
        return _finding(
            name,
            CheckState.WARNING,
            "the clock is not synchronised",
            "Run chrony or systemd-timesyncd: timestamps and retention depend on the clock.",
        )
    return _finding(name, CheckState.HEALTHY, f"synchronised, error below {error_us / 1000:.0f} ms")


def _memory() -> tuple[int, int]:
    """Return the available and the total memory in bytes, as far as the container may use it."""
    fields = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields[key] = int(value.split()[0]) * 1024
    available, total = fields["MemAvailable"], fields["MemTotal"]
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except OSError:
        return available, total
    if limit.isdecimal():
        total = min(total, int(limit))
        available = min(available, max(0, int(limit) - used))
    return available, total


def check_memory(available: int, total: int) -> Finding:
    """Check the memory for a broker and the page cache."""
    found = f"{format_bytes(available)} available of {format_bytes(total)}"
    if available >= _MEMORY_ENOUGH:
        return _finding("memory", CheckState.HEALTHY, found)
    state = CheckState.UNHEALTHY if available < _MEMORY_MIN else CheckState.WARNING
    return _finding(
        "memory",
        state,
        found,
        "Stop other programs or add memory: brokers read recent records from the page cache.",
    )


def check_port(port: int, purpose: str, path: str | None = None) -> Finding:
    """Check that a port is free, or that a broker listens there."""
    name = f"port {port}"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As a server does: connections that were closed shortly before do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError:
            advice = "Choose a port from 1024 on, or grant CAP_NET_BIND_SERVICE."
            return _finding(name, CheckState.UNHEALTHY, "this user may not listen there", advice)
        except OSError:
            pass
        else:
            return _finding(name, CheckState.HEALTHY, f"free for {purpose}")
    if _is_broker(port, path):
        return _finding(name, CheckState.HEALTHY, f"a broker listens for {purpose}")
    option = "--listen" if path is None else "--http"
    return _finding(
        name,
        CheckState.WARNING,
        "another program listens there",
        f"Stop that program, or choose another port with `millstream serve {option}`.",
    )


def _is_broker(port: int, path: str | None) -> bool:
    if path is None:
        return _speaks_kafka(port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=_HTTP_S_MAX):
            return True
    except urllib.error.HTTPError as error:
        # A broker that is not healthy answers with this status.
        return error.code == 503
    except OSError:
        return False


def _speaks_kafka(port: int) -> bool:
    """Send ApiVersions version 0, whose response every version of the protocol has."""
    client = b"millstream-doctor"
    body = struct.pack(">hhih", 18, 0, 7, len(client)) + client
    try:
        with socket.create_connection(("127.0.0.1", port), _HTTP_S_MAX) as connection:
            connection.settimeout(_HTTP_S_MAX)
            connection.sendall(struct.pack(">i", len(body)) + body)
            head = connection.recv(8)
    except OSError:
        return False
    return len(head) == 8 and struct.unpack(">ii", head)[1] == 7
