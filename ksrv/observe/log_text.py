"""The text of a log record: one line, and a traceback below it that cannot be taken for a record.

The text of a client or a handler may contain line breaks and the codes that move a terminal's cursor. In
a log they would end a record and begin a false record.
"""

import logging

TRACEBACK_INDENT = "  "

_IN_QUOTES = str.maketrans({"\\": r"\\", '"': r"\""})


def in_quotes(text: str) -> str:
    """Return a text for a place between double quotes: quotes and backslashes in it are escaped.

    Args:
        text: The text of a client. Other escapes in a line also begin with a backslash.
    """
    return text.translate(_IN_QUOTES)


def one_line(text: str) -> str:
    """Return a text with everything that is not printable escaped as Python escapes it.

    Args:
        text: The text; blanks stay, line breaks and tabs do not.
    """
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
