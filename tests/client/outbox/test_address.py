"""Addresses of databases, which may have passwords."""

from __future__ import annotations

import pytest

from millstream.client.outbox.address import database_at
from millstream.client.outbox.schema import TABLE_DEFAULT
from millstream.model.error import UsageError


@pytest.mark.parametrize(
    "address",
    ["mysql://app:pa55word@host/shop", "host=db user=app password=pa55word", "sqlite://", ""],
)
def test_an_unknown_address_is_rejected_without_its_password(address: str) -> None:
    with pytest.raises(UsageError, match="is not a database address") as caught:
        database_at(address, TABLE_DEFAULT)
    assert "pa55word" not in str(caught.value)
