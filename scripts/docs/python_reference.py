"""The reference page of the Python API, from signatures and docstrings of the public names."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import types
from collections.abc import Iterator
from typing import Any, Final

from scripts.docs.markdown import table

import millstream
import millstream.spark

_WIDTH_MAX: Final = 88
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


def client_page() -> str:
    """Return a section for each public name of `millstream`."""
    return _page(millstream, 2)


def spark_page() -> str:
    """Return a section for each public name of `millstream.spark`."""
    return _page(millstream.spark, 3)


def _page(module: types.ModuleType, level: int) -> str:
    named = {name: getattr(module, name) for name in module.__all__}
    public = {name: each for name, each in named.items() if _is_described(each)}
    return "\n".join(_entry(name, each, level) for name, each in sorted(public.items()))


def _is_described(value: Any) -> bool:
    """Whether a name has a section; aliases of types have none."""
    return inspect.isclass(value) or inspect.isfunction(value)


def _entry(name: str, value: Any, level: int) -> str:
    if inspect.isclass(value) and issubclass(value, BaseException):
        return f"{'#' * level} {name}\n\n{_doc(value)}\n"
    signature = _signature(name, value)
    parts = [f"{'#' * level} {name}\n", signature, f"{_doc(value)}\n"]
    if inspect.isclass(value):
        parts += _fields(value)
        parts += [_member(each, function) for each, function in _methods(value)]
    return "\n".join(part for part in parts if part.strip())


def _signature(name: str, value: Any) -> str:
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        return ""
    try:
        shown = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    return f"```python\n{_wrapped(name, shown)}\n```\n"


def _wrapped(name: str, signature: inspect.Signature) -> str:
    """Return a call's signature; one parameter a line if it is long."""
    text = _ADDRESS.sub("", f"{name}{signature}".replace("'", ""))
    if len(text) <= _WIDTH_MAX:
        return text
    lines = []
    kinds = [each.kind for each in signature.parameters.values()]
    for number, each in enumerate(signature.parameters.values()):
        is_first_keyword = each.kind is each.KEYWORD_ONLY and each.kind not in kinds[:number]
        if is_first_keyword and each.VAR_POSITIONAL not in kinds:
            lines.append("    *,")
        lines.append(f"    {each},".replace("'", ""))
    returned = signature.return_annotation
    end = "" if returned is signature.empty else f" -> {returned}".replace("'", "")
    return _ADDRESS.sub("", "\n".join([f"{name}(", *lines, f"){end}"]))


def _fields(value: type) -> Iterator[str]:
    """Yield a table of the fields of a tuple or dataclass, and of the members of an enum."""
    if issubclass(value, enum.Enum):
        yield table(("member", "value"), ((f"`{e.name}`", f"`{e.value!r}`") for e in value))
    elif dataclasses.is_dataclass(value) and inspect.signature(value).parameters:
        rows = [(f"`{field.name}`", f"`{field.type}`") for field in dataclasses.fields(value)]
        yield table(("field", "type"), rows)


def _methods(value: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that Millstream defines."""
    for name in sorted(dir(value)):
        if name.startswith("_"):
            continue
        found = inspect.getattr_static(value, name)
        function: Any = getattr(found, "fget" if isinstance(found, property) else "__func__", found)
        is_ours = str(getattr(function, "__module__", "")).startswith("millstream")
        if is_ours and inspect.isfunction(inspect.unwrap(function)):
            yield name, found


def _member(name: str, found: Any) -> str:
    if isinstance(found, property):
        return f"**`{name}`**\n\n{_doc(found)}\n"
    function = getattr(found, "__func__", found)
    signature = inspect.signature(function)
    parameters = [each for key, each in signature.parameters.items() if key not in ("self", "cls")]
    prefix = "await " if inspect.iscoroutinefunction(function) else ""
    shown = _wrapped(prefix + name, signature.replace(parameters=parameters))
    return f"```python\n{shown}\n```\n\n{_doc(function)}\n"


def _doc(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    is_plain = not any(line.startswith("#") for line in text.splitlines())
    return text if is_plain else text.replace("\n#", "\n\\#")
