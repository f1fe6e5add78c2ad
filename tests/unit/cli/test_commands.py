"""The command group: what it lists, and what it loads."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from ksrv.cli.main import SECTIONS, main

SUMMARIES = {name: text for commands in SECTIONS.values() for name, text in commands.items()}


@pytest.fixture
def context():
    return click.Context(main)


@pytest.mark.parametrize("name", SUMMARIES)
def test_listed_summary_equals_the_commands_help(context, name):
    command = main.get_command(context, name)
    assert command.name == name
    first = " ".join(command.help.split("\n\n")[0].split())
    assert first == SUMMARIES[name]
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


def test_help_has_sections(context):
    text = CliRunner().invoke(main, ["--help"]).output
    for title in SECTIONS:
        assert f"\n{title}:\n" in text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sevre", "unknown command 'sevre'; did you mean 'serve'?"),
        ("models", "to serve these models: ksrv serve models"),
        ("xyz", "`ksrv --help` lists the commands"),
        ("x" * 300, "`ksrv --help` lists the commands"),
    ],
)
def test_unknown_command_exits_with_status_2(tmp_path, monkeypatch, name, says):
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, [name])
    assert done.exit_code == 2
    assert says in done.output


def test_misspelt_kind_of_a_model_is_guessed(tmp_path):
    done = CliRunner().invoke(main, ["init", "imageclassifier", str(tmp_path / "new")])
    assert done.exit_code == 2
    assert "did you mean image-classifier?" in done.output


def completed(words, place):
    done = subprocess.run(
        [sys.executable, "-m", "ksrv"],
        env={"_KSRV_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(place)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert not done.stderr, done
    return set(done.stdout.split())


def test_completion_knows_the_commands():
    assert {"plain,infer", "plain,init"} <= completed("ksrv in", 1)


def test_completion_after_an_unknown_command_is_empty():
    assert completed("ksrv sevre mod", 2) == set()


def test_unloadable_core_prints_one_sentence(tmp_path):
    broken = tmp_path / "_core.so"
    broken.write_bytes(b"no library\n" * 100)
    code = (
        "import pathlib, ksrv._native\n"
        f"ksrv._native._FILES = [pathlib.Path({str(broken)!r})]\n"
        "from ksrv.cli.main import main\n"
        "main(['serve', 'models'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: the native core cannot be loaded: {broken}: ")
    assert done.stderr.count("\n") == 1
