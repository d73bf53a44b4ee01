from __future__ import annotations

import http.server
import resource
import threading
from pathlib import Path

from harness.process.broker_process import free_port
from millstream.cli.doctor.finding import CheckState
from millstream.cli.doctor.host_check import (
    check_disk,
    check_files,
    check_memory,
    check_port,
    file_system,
)

GIB = 1 << 30
MOUNTS = """\
/dev/root / ext4 rw 0 0
server:/x /srv nfs4 rw 0 0
tmpfs /srv/fast tmpfs rw 0 0
/dev/b /srv\\040two xfs rw 0 0
"""


def test_the_file_limit() -> None:
    assert check_files(resource.RLIM_INFINITY).state is CheckState.HEALTHY
    assert check_files(100_000).state is CheckState.HEALTHY
    assert check_files(20_000).state is CheckState.WARNING
    low = check_files(1024)
    assert low.state is CheckState.UNHEALTHY
    assert "LimitNOFILE" in str(low.advice)


def test_the_file_system_of_the_longest_mount() -> None:
    assert file_system(Path("/srv/data/deep"), MOUNTS) == "nfs4"
    assert file_system(Path("/srv/fast/data"), MOUNTS) == "nfs4", "the folder does not exist"
    assert file_system(Path("/"), MOUNTS) == "ext4"
    assert file_system(Path("/etc"), MOUNTS) == "ext4"


def test_memory() -> None:
    assert check_memory(2 * GIB, 4 * GIB).state is CheckState.HEALTHY
    assert check_memory(GIB // 2, 4 * GIB).state is CheckState.WARNING
    assert check_memory(GIB // 8, 4 * GIB).state is CheckState.UNHEALTHY


def test_the_disk_of_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert str(tmp_path / "new") in check_disk(tmp_path / "new").found


def test_ports() -> None:
    assert check_port(free_port(), "clients").state is CheckState.HEALTHY
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        for purpose, path in (("clients", None), ("metrics", "/no-such-page")):
            taken = check_port(port, purpose, path)
            assert taken.state is CheckState.WARNING
            assert "another program" in taken.found
        server.shutdown()
