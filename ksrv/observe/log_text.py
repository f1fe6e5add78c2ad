"""Formats a log record as one line, with an indented traceback below it.

Texts of clients and handlers may contain line breaks, and codes that move a terminal's cursor. Unescaped, they could
end a record and begin a forged record.
"""

import logging

TRACEBACK_INDENT = "  "

_IN_QUOTES = str.maketrans({"\\": r"\\", '"': r"\""})


def in_quotes(text: str) -> str:
    """Escape the double quotes and backslashes of a text that is logged in double quotes.

    Args:
        text: The text of a client.
    """
    return text.translate(_IN_QUOTES)


def one_line(text: str) -> str:
    """Return a text whose line breaks and other unprintable characters are escaped as in Python; backslashes stay."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


class RecordFormatter(logging.Formatter):
    """A formatter whose records are one line each, with tracebacks indented below them."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text."""
        record.message = record.getMessage()
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        lines = [one_line(self.formatMessage(record))]
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        for below in (record.exc_text, record.stack_info):
            lines += [TRACEBACK_INDENT + one_line(line) for line in (below or "").splitlines()]
        return "\n".join(lines)
