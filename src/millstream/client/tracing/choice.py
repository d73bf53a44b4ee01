"""Whether a client is traced, and by which tracer. Imports OpenTelemetry only if it is.

tracing=False      not traced
tracing=True       traced by the global tracer provider
tracing=provider   traced by this tracer provider
tracing=None       as True if the program has set a global tracer provider before, else as False
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from millstream.client.error import UsageError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

    TracingOption: TypeAlias = bool | TracerProvider | None
else:
    TracingOption: TypeAlias = Any

_API: Final = "opentelemetry.trace"
#: The API loads a provider by this variable at the first use.
_PROVIDER_VARIABLE: Final = "OTEL_PYTHON_TRACER_PROVIDER"
_NAME: Final = "millstream"
_SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.37.0"


def tracer_of(tracing: TracingOption) -> Tracer | None:
    """Return the tracer for the option of a client; None if the client is not traced."""
    if tracing is False or (tracing is None and not _has_provider()):
        return None
    provider: Any = None if tracing is True else tracing
    if provider is not None and not hasattr(provider, "get_tracer"):
        raise UsageError(f"tracing={tracing!r}: pass True, False or a TracerProvider.")
    try:
        trace: Any = importlib.import_module(_API)
    except ImportError as error:
        raise UsageError(
            "tracing=... needs OpenTelemetry's API, which is not installed: "
            "pip install 'millstream[opentelemetry]'."
        ) from error
    tracer: Tracer = (provider or trace.get_tracer_provider()).get_tracer(
        _NAME, schema_url=_SCHEMA_URL
    )
    return tracer


def _has_provider() -> bool:
    """Whether the program has set a global tracer provider.

    A program that has set one has imported the API.
    """
    trace: Any = sys.modules.get(_API)
    if trace is None:
        return False
    if _PROVIDER_VARIABLE in os.environ:
        return True
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
