"""OpenTelemetry: the spans of producers, consumers, workers and the outbox.

This package owns the choice whether a client is traced, the spans by the conventions for messaging,
and the propagation of contexts in record headers (`traceparent`, `tracestate`). Clients choose
once, when they are created. A client that is not traced imports nothing of OpenTelemetry. Needs
`millstream[opentelemetry]`.
"""
