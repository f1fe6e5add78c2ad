"""How a handler's files, and what they import, come into a process that serves other models as well."""
