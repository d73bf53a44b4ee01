"""What handlers are called with, by their annotations."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict, cast

import msgspec
import pydantic
import pytest

from millstream.client import Job, UsageError
from millstream.client.record import Partition, Record
from millstream.client.worker.failure import InvalidPayload
from millstream.client.worker.handler.payload import bound
from millstream.client.worker.message.header import Origin
from millstream.client.worker.message.work_item import WorkItem


class Model(pydantic.BaseModel):
    id: int


class Struct(msgspec.Struct):
    id: int


@dataclasses.dataclass
class Plain:
    id: int


@pydantic.dataclasses.dataclass
class Checked:
    id: int


class Typed(TypedDict):
    id: int


class Named(NamedTuple):
    id: int


KINDS = [Model, Struct, Plain, Checked]


class FakeRecord:
    def __init__(self, value: Any) -> None:
        self.raw_key, self.value, self.offset = b"", value, 0
        self.raw_value = value if isinstance(value, bytes) else b""


def job_of(value: Any) -> Job:
    record = cast("Record", cast("Any", FakeRecord(value)))
    item = WorkItem(Partition("t", 0), record, Origin("t", 0, 0, None, None, 0, None), None)
    return Job(item, 0.0)


def called(function: Callable[..., Any], value: Any) -> Any:
    return bound(function, is_async=False)(job_of(value))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [b'{"id": 7}', {"id": 7}], ids=["json", "decoded"])
def test_a_payload(kind: Any, value: Any) -> None:
    def bill(order: Any) -> Any:
        return order

    bill.__annotations__["order"] = kind
    order = called(bill, value)
    assert isinstance(order, kind)
    assert cast("Any", order).id == 7


def test_a_typed_job() -> None:
    def bill(job: Job[Model]) -> Any:
        return job.value

    assert called(bill, b'{"id": 7}') == Model(id=7)
    # A deserializer made the model.
    model = Model(id=8)
    assert called(bill, model) is model


def test_a_payload_and_the_job() -> None:
    def bill(order: Struct, job: Job) -> Any:
        return order, job.value

    assert called(bill, b'{"id": 7}') == (Struct(7), b'{"id": 7}')


def test_containers_and_unions() -> None:
    def many(orders: list[Model]) -> Any:
        return orders

    def maybe(order: Plain | None) -> Any:
        return order

    def typed(order: Typed) -> Any:
        return order

    assert called(many, b'[{"id": 7}]') == [Model(id=7)]
    assert called(maybe, b"null") is None
    assert called(maybe, None) is None
    assert called(maybe, b'{"id": 7}') == Plain(7)
    assert called(typed, b'{"id": 7}') == {"id": 7}


def test_a_coroutine_function() -> None:
    async def bill(order: Struct) -> Any:
        return order

    async def look(job: Job[Struct]) -> Any:
        return job.value

    for function in (bill, look):
        handler = bound(function, is_async=True)
        assert asyncio.run(handler(job_of(b'{"id": 7}'))) == Struct(7)


@pytest.mark.parametrize("kind", [*KINDS, Typed, Named])
@pytest.mark.parametrize("value", [b'{"id": "x"}', b"{}", b"\xff\x00", b"{", None])
def test_a_payload_that_does_not_validate(kind: Any, value: Any) -> None:
    def bill(order: Any) -> Any:
        raise AssertionError("was called")

    bill.__annotations__["order"] = kind
    with pytest.raises(InvalidPayload, match=f"not a valid {kind.__name__}: "):
        called(bill, value)


def test_handlers_of_plain_jobs_are_called_directly() -> None:
    def bare(job):  # type: ignore[no-untyped-def]
        ...

    def any_of(job: Any) -> None: ...

    def annotated(job: Job) -> None: ...

    def of_bytes(job: Job[bytes]) -> None: ...

    class Handler:
        def __call__(self, job: Job) -> None: ...

        def method(self, job: Job, retries: int = 3) -> None: ...

    handler = Handler()
    for function in (bare, any_of, annotated, of_bytes, print, handler, handler.method):
        assert bound(function, is_async=False) == function


def test_annotations_that_cannot_work() -> None:
    def of_int(order: int) -> None: ...

    def of_two(order: Struct, other: int) -> None: ...

    def unknown(order: NoSuchType) -> None:  # type: ignore[name-defined] # noqa: F821
        ...

    with pytest.raises(UsageError, match="takes int: annotate its parameter with Job"):
        bound(of_int, is_async=False)
    with pytest.raises(UsageError, match=r"second parameter of the handler .* with Job"):
        bound(of_two, is_async=False)
    with pytest.raises(UsageError, match=r"'NoSuchType' .* cannot be resolved"):
        bound(unknown, is_async=False)
