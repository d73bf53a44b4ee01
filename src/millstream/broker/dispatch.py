"""API entries, and the table that sessions dispatch requests by.

Each module of `broker/handlers/` declares an `ApiEntry`; `broker/handlers/__init__.py` collects the
entries into an `ApiTable`. ApiVersions lists that table, so a client learns exactly the
versions that are dispatched.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from millstream.broker.audit.audited import Change, audited
from millstream.broker.context import Context
from millstream.broker.metrics.broker_metrics import ApiMetrics, Metrics
from millstream.model.acl import Operation, ResourceType
from millstream.model.error import ErrorCode
from millstream.model.reply import Reply
from millstream.wire.api import ApiKey
from millstream.wire.schema import Codec, Message, codec

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

#: What a handler returns: the response; the `Reply` that delivers it later; a coroutine that
#: computes it (in a task of its own: not for the hot path); or None if the protocol has no response
#: (Produce with acks=0).
Outcome: TypeAlias = ResponseT | Reply[Any] | Coroutine[Any, Any, ResponseT] | None

#: Handles one request. The request is valid until the handler returns.
Handler: TypeAlias = Callable[[RequestT, Context], Outcome[ResponseT]]

#: A handler whose API is only known at run time. None is a request of an unknown version, which
#: only ApiVersions accepts.
DispatchedHandler: TypeAlias = Callable[[Message | None, Context], Outcome[Message]]
ErrorResponder: TypeAlias = Callable[[Message | None, Context, ErrorCode], Message | None]


class Right(NamedTuple):
    """A right that an API's handler checks."""

    operation: Operation
    resource_type: ResourceType
    #: When the right is needed, as the end of "needed ..."; empty if always.
    condition: str = ""


#: The access of an API that every client may use.
OPEN: Final[tuple[Right, ...]] = ()


@dataclass(frozen=True, slots=True)
class ApiEntry(Generic[RequestT, ResponseT]):
    """One API as its handler's module declares it."""

    request: type[RequestT]
    response: type[ResponseT]
    #: First and last version that is served.
    versions: tuple[int, int]
    handle: Handler[RequestT, ResponseT]
    #: Makes the response to a request whose handler failed; None if there is none in a version. By
    #: default the response has one error code.
    error_response: Callable[[RequestT, Context, ErrorCode], ResponseT | None] | None = None
    #: The first version that ApiVersions lists, if it is below the first version that is served.
    listed_from: int | None = None
    #: Whether parts of a response may be sent from files.
    sends_files: bool = False
    #: Finds the changes that a request asked for, for the audit trail; None if it changes nothing.
    audit: Callable[[RequestT, ResponseT], Iterable[Change]] | None = None
    #: The rights that the handler checks, as in Kafka. Every entry declares them.
    access: tuple[Right, ...] | None = None


class Api:
    """One row of the table. The codec of a version is compiled when the version is first used."""

    __slots__ = (
        "_request_codecs",
        "_response_codecs",
        "error_response",
        "handle",
        "key",
        "listed_from",
        "metrics",
        "name",
        "request",
        "response",
        "sends_files",
        "version_max",
        "version_min",
    )

    def __init__(
        self, entry: ApiEntry[Any, Any], metrics: Metrics, *, is_audited: bool = False
    ) -> None:
        self.request: type[Message] = entry.request
        self.response: type[Message] = entry.response
        self.handle: DispatchedHandler = entry.handle
        self.error_response: ErrorResponder | None = entry.error_response
        self.key: ApiKey = entry.request.api_key
        self.version_min, self.version_max = entry.versions
        self.listed_from = self.version_min if entry.listed_from is None else entry.listed_from
        self.name = self.request.__name__.removesuffix("Request")
        self.metrics: ApiMetrics = metrics.api(self.name)
        self.sends_files = entry.sends_files
        if is_audited and entry.audit is not None:
            self.handle = audited(self.name, self.handle, entry.audit)
        self._request_codecs: dict[int, Codec[Message]] = {}
        self._response_codecs: dict[int, Codec[Message]] = {}

    def request_codec(self, version: int) -> Codec[Message]:
        found = self._request_codecs.get(version)
        if found is None:
            found = self._request_codecs[version] = codec(self.request, version)
        return found

    def response_codec(self, version: int) -> Codec[Message]:
        found = self._response_codecs.get(version)
        if found is None:
            found = self._response_codecs[version] = codec(self.response, version)
        return found


class ApiTable:
    """The APIs of a broker by key."""

    __slots__ = ("_apis", "get")

    def __init__(self, apis: Iterable[Api]) -> None:
        self._apis = {int(api.key): api for api in apis}
        #: Returns the API of a key, or None. Bound here to save a call for each request.
        self.get: Callable[[int], Api | None] = self._apis.get

    def __iter__(self) -> Iterator[Api]:
        return iter(self._apis.values())
