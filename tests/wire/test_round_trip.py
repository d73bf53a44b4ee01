"""Every message in every version is decoded to the value that was encoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from millstream.wire.schema import Versioned, codec

Values = Callable[..., st.SearchStrategy[Any]]

quick = settings(
    max_examples=10,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)


@quick
@given(data=st.data())
def test_decode_returns_what_was_encoded(
    shape: type[Versioned], version: int, message_values: Values, data: st.DataObject
) -> None:
    message = data.draw(message_values(shape, version))
    encoded = b"".join(codec(shape, version).encode(message))
    assert codec(shape, version).decode(encoded) == message
    assert codec(shape, version).decode(memoryview(bytearray(b"..." + encoded)), 3) == message
