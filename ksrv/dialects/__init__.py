"""The dialects: support for other servers' files, routes and clients, with one folder for each server.

This file is imported with every module of a dialect, also in handler processes, so it imports no dialect.
"""
