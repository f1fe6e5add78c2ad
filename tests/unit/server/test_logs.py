import json
import logging
import sys

from ksrv.server.logs import JsonFormatter, make_formatter
from ksrv.server.settings import ServerSettings


def record(message, *arguments, **extra):
    made = logging.LogRecord("ksrv.x", logging.ERROR, __file__, 1, message, arguments, None)
    vars(made).update(extra)
    return made


def test_a_record_is_one_line_whatever_a_client_sent():
    text = JsonFormatter().format(record("model %s", 'a\n{"level":"info"}', model="m", ids=[1]))
    assert "\n" not in text
    line = json.loads(text)
    assert line["message"] == 'model a\n{"level":"info"}'
    assert (line["level"], line["logger"], line["model"], line["ids"]) == (
        "error",
        "ksrv.x",
        "m",
        [1],
    )
    assert line["time"].endswith("Z")


def test_what_json_cannot_say_is_written_as_text():
    line = json.loads(JsonFormatter().format(record("x", path=object())))
    assert line["path"].startswith("<object")


def test_a_text_record_is_one_line_whatever_a_client_sent():
    text = make_formatter(ServerSettings()).format(record("id %s", "a\nb\r\x1b[2J\u2028\x9b\ud800"))
    assert text.endswith(r"id a\nb\r\x1b[2J\u2028\x9b\ud800") and text.isprintable()


def test_a_traceback_cannot_be_taken_for_a_record():
    try:
        raise ValueError("the cause\nforged\x1b")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    first, *below = make_formatter(ServerSettings()).format(made).split("\n")
    assert first.endswith("failed") and below[0] == "  Traceback (most recent call last):"
    assert below[-1] == r"  forged\x1b"
    assert all(line.startswith("  ") for line in below)
