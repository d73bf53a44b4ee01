"""The table of APIs: which handler serves which request, in which versions.

`broker/handlers/__init__.py` fills the table; ApiVersions is answered from it, so what a client is
told is what is dispatched.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeAlias

from millstream.broker.context import Context
from millstream.broker.metrics.broker_metrics import ApiMetrics, Metrics
from millstream.model.reply import Reply
from millstream.wire.api import ApiKey
from millstream.wire.schema import Codec, codec

#: Returns the response; the Reply that will give it; a coroutine that computes it (one task: not
#: for the hot path); or None where the protocol has no response (Produce with acks=0).
Handler: TypeAlias = Callable[[Any, Context], Any | Reply[Any] | Coroutine[Any, Any, Any] | None]


class Api:
    """One row of the table, with its codecs compiled when a version is first used."""

    __slots__ = (
        "_request_codecs",
        "_response_codecs",
        "flexible_from",
        "handle",
        "key",
        "metrics",
        "name",
        "request",
        "response",
        "sends_files",
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
        self.name: str = request.__name__.removesuffix("Request")
        self.metrics: ApiMetrics = metrics.api(self.name)
        #: Whether a response may have parts that are sent from files.
        self.sends_files = self.key == ApiKey.FETCH
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
