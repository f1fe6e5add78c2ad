"""Options of `ksrv check --signature` that do not fit together, and the missing package."""

import sys

import pytest
from click.testing import CliRunner

from ksrv.cli.main import main


@pytest.mark.parametrize(
    "words",
    [
        ["a", "--signature", __file__],
        ["a", "--signed-by", __file__],
        ["a", "b", "--signature", __file__, "--signed-by", __file__],
        ["a", "--signature", "/none", "--signed-by", __file__],
    ],
)
def test_options_that_do_not_fit_are_a_usage_error(words):
    done = CliRunner().invoke(main, ["check", *words])
    assert done.exit_code == 2 and "--sign" in done.output


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "model_signing", None)
    words = ["check", "a", "--signature", __file__, "--signed-by", __file__]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1 and "pip install model-signing" in done.output
