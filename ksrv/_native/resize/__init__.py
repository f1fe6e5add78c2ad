"""Bindings of native/resize."""
