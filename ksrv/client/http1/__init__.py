"""HTTP/1.1 over a socket and over asyncio's streams: one request and its answer after the other.

http.client is not used because its headers cost more than a small inference, and asyncio has no HTTP
client at all.
"""
