"""The contents of error texts."""

from pathlib import Path

import pytest

from ksrv.errors import without_paths

ROOT = Path("/srv/my models/cats")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/srv/my models/cats/model.yaml, line 3: x", "model.yaml, line 3: x"),
        ("/srv/my models/cats has no settings", "cats has no settings"),
        ("No such file: '/srv/my models/cats/a/b.txt'", "No such file: 'a/b.txt'"),
        ("No such file: '/etc/other place/b c.txt'", "No such file: 'b c.txt'"),
        ("cannot open /usr/lib/libx.so.1: no such file", "cannot open libx.so.1: no such file"),
        ("(/a/b.py, line 1) [/c/d] <file:///e/f.py>", "(b.py, line 1) [d] <f.py>"),
        ("two are called x: /a/b/x and /a/c/x.", "two are called x: x and x."),
        ("see https://pytorch.org/docs/stable", "see https://pytorch.org/docs/stable"),
        ("and/or, 1 / 2, a/b/c, ../x, ~/y", "and/or, 1 / 2, a/b/c, ../x, ~/y"),
        ("/model", "model"),
    ],
)
def test_absolute_paths_stay_out_of_a_text(text, shown):
    assert without_paths(text, ROOT, ROOT.parent, Path("/"), Path("relative")) == shown
