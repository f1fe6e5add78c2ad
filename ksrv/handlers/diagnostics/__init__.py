"""A handler's log, metrics and times, and the details of failures and profiles for a developer."""
