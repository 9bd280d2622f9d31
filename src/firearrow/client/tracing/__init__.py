"""Message trace: its records, the tracer that sends them, and spans of OpenTelemetry."""
