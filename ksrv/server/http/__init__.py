"""HTTP for every route: request bodies and their limits, WSGI environments, answers, request ids, the access log."""
