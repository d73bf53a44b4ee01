from __future__ import annotations

import socket

import pytest

from millstream.spark.error import Unavailable
from millstream.spark.session import require_server


def test_an_unreachable_server_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        require_server(f"sc://127.0.0.1:{port}/;token=secret")
    with pytest.raises(Unavailable, match=f"responds at 127.0.0.1:{port}: ") as caught:
        require_server(f"sc://127.0.0.1:{port}/;token=secret")
    assert "secret" not in str(caught.value)
    require_server("local[2]")
