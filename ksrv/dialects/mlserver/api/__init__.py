"""The classes and functions that runtimes import from `mlserver` if the package is not installed."""
