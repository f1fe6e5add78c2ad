"""HTTP/1.1 over a socket and over asyncio's streams, without pipelining.

Python's http.client is not used, because its parser of headers takes longer than a small inference, and asyncio has no
HTTP client.
"""
