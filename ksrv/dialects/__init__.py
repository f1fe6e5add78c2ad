"""The dialects: what other servers' files, routes and clients need, one folder for each server.

This file is imported with each of their modules, also in handler processes, so it imports none of them.
"""
