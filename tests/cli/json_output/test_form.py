from __future__ import annotations

from millstream.cli.json_output.form import by_name, one, rows

_TOPIC = one(
    {
        "topic": "",
        "note?": "",
        "partitions": "",
        "partitions[].leader": "",
        "configs": "",
        "configs{}.value": "",
        "sample": "",
        "sample.records": "",
        "free": "",
    }
)


def _value() -> dict[str, object]:
    return {
        "topic": "t",
        "partitions": [{"leader": 1}],
        "configs": {"retention.ms": {"value": "1"}},
        "sample": {"records": 3},
        "free": {"any": {"thing": 1}},
    }


def test_an_output_as_documented() -> None:
    assert _TOPIC.problems(_value()) == []
    assert _TOPIC.problems(_value() | {"note": "n"}) == []


def test_keys_that_differ() -> None:
    value = _value() | {
        "more": 1,
        "partitions": [{"leader": 1}, {"isr": []}],
        "configs": {"a": {"value": "1", "source": "s"}},
        "sample": {},
    }
    del value["topic"]
    assert _TOPIC.problems(value) == [
        "configs{}.source is not documented",
        "more is not documented",
        "partitions[].isr is not documented",
        "partitions[].leader is missing",
        "sample.records is missing",
        "topic is missing",
    ]


def test_the_form_differs() -> None:
    assert rows({"a": ""}).problems({"a": 1}) == ["the output is not a list of objects"]
    assert one({"a": ""}).problems([{"a": 1}]) == ["the output is not one object"]
    assert rows({"a": ""}).problems([{"a": 1}, {}]) == ["a is missing"]
    assert by_name({"a": ""}).problems({"x": {"a": 1}, "y": {"b": 1}}) == [
        "a is missing",
        "b is not documented",
    ]
