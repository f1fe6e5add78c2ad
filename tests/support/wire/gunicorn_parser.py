"""gunicorn's own parser of HTTP/1.1, written in Python, which judges what the native one reads."""

from gunicorn.config import Config
from gunicorn.http.parser import RequestParser

CONFIG = Config()
"""Made once: that takes longer than parsing a message."""
CONFIG.set("http_parser", "python")
CONFIG.set("secure_scheme_headers", {})  # ksrv refuses no head for contradicting schemes


def gunicorn_parser(data: bytes, peer: tuple[str, int] = ("127.0.0.1", 1)) -> RequestParser:
    return RequestParser(CONFIG, iter([data]), peer)
