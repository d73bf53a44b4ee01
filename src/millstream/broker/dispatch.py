"""The table of APIs: which handler answers which request, in which versions.

`broker/handlers/__init__.py` fills the table; ApiVersions is answered from it, so what a client is
told is what is dispatched.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeAlias

from millstream.broker.context import Context
from millstream.broker.deferred import Deferred
from millstream.broker.metrics import ApiMetrics, Metrics
from millstream.wire.api import ApiKey
from millstream.wire.schema import Codec, codec

#: What a handler returns: the answer; a Deferred that will have it; a coroutine that computes it
#: (one task: not for the hot path); or None where the protocol has no answer (Produce with acks=0).
Outcome: TypeAlias = Any | Deferred | Coroutine[Any, Any, Any] | None
Handler: TypeAlias = Callable[[Any, Context], Outcome]


class Api:
    """One row of the table, with its codecs compiled when a version is first used."""

    __slots__ = (
        "_request_codecs",
        "_response_codecs",
        "flexible_from",
        "handle",
        "key",
        "metrics",
        "request",
        "response",
        "version_max",
        "version_min",
    )

    def __init__(self, request: Any, response: Any, handle: Handler, metrics: Metrics) -> None:
        self.key: ApiKey = request.api_key
        self.request = request
        self.response = response
        self.handle = handle
        self.version_min, self.version_max = request.versions
        self.flexible_from: int = request.flexible_from
        self.metrics: ApiMetrics = metrics.api(request.__name__.removesuffix("Request"))
        self._request_codecs: dict[int, Codec[Any]] = {}
        self._response_codecs: dict[int, Codec[Any]] = {}

    def request_codec(self, version: int) -> Codec[Any]:
        found = self._request_codecs.get(version)
        if found is None:
            found = self._request_codecs[version] = codec(self.request, version)
        return found

    def response_codec(self, version: int) -> Codec[Any]:
        found = self._response_codecs.get(version)
        if found is None:
            found = self._response_codecs[version] = codec(self.response, version)
        return found


class ApiTable:
    """All APIs of this broker by key."""

    __slots__ = ("_apis", "get")

    def __init__(self, apis: Iterable[Api]) -> None:
        self._apis = {int(api.key): api for api in apis}
        #: The API of a key, or None.
        self.get: Callable[[int], Api | None] = self._apis.get

    def __iter__(self) -> Iterator[Api]:
        return iter(self._apis.values())
