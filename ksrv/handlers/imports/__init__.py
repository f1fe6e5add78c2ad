"""Imports the files of handlers into a process that serves other models as well, and loads the same files again
later.
"""
