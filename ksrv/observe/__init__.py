"""The metrics, traces and log lines of a running server."""
