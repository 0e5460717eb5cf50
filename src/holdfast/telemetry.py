"""OpenTelemetry: spans and metrics of jobs."""
