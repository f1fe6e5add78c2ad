"""`ksrv serve --reload`: a line of the log for each load of a model that changed, and for each that is gone."""

import re

import pytest

from ksrv.testing import Server
from tests.support.models import ECHO, VECTOR, write_model
from tests.support.wait_until import wait_until

LINE = re.compile(r"\b((?:loaded \w+ in \d|unloaded \w+: ).*)")


def reload_lines(server):
    """Return what the log says of reloads, with the seconds replaced."""
    found = [match[1] for match in map(LINE.search, server.log.splitlines()) if match]
    return [re.sub(r"in \d+\.\d\d s", "in S s", line) for line in found]


def replace_text(path, text):
    """Change a file at once, as editors do: the server may look at any time."""
    aside = path.with_name(".new")
    aside.write_text(text)
    aside.rename(path)


@pytest.mark.parametrize("executor", ["inline", "process"])
def test_each_reload_logs_one_line_with_the_reason(tmp_path, executor):
    yaml = VECTOR + f"executor: {executor}\n"
    root, aside = tmp_path / "models", tmp_path / "aside"
    root.mkdir()
    aside.mkdir()
    echo, other = (write_model(root, name, ECHO, yaml) for name in ("echo", "other"))
    with Server(root, reload=True) as server:
        expected = []

        def reloaded(line):
            expected.append(line)
            wait_until(lambda: len(reload_lines(server)) >= len(expected))
            assert reload_lines(server) == expected

        replace_text(echo / "handler.py", ECHO + "# changed\n")
        reloaded("loaded echo in S s: changed: handler.py")
        write_model(aside, "third", ECHO, yaml).rename(root / "third")
        reloaded("loaded third in S s: a new model")
        replace_text(other / "handler.py", "syntax error\n")
        wait_until(lambda: "the model other version -: " in server.log)
        assert reload_lines(server) == expected  # it serves as before
        replace_text(other / "handler.py", ECHO + "# right again\n")
        reloaded("loaded other in S s: changed: handler.py")
        (root / "third").rename(aside / "third")
        reloaded("unloaded third: its files are gone")
