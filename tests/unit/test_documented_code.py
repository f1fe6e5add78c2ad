"""Code in the documents that no other test runs: commands have the shown options, and Python and YAML are valid."""

import re
import shlex

import click
import pytest
import yaml

from ksrv.cli.main import main
from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "deploy/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN_BY = {
    "README.md": "tests/integration/docs/test_readme.py",
    "docs/client.md": "tests/integration/clients/test_client_docs.py",
    "docs/commands.md": "tests/integration/cli/test_commands_docs.py",
    "docs/composition.md": "tests/integration/docs/test_fragments.py",
    "docs/migration/mlflow.md": "tests/dialects/mlflow/test_documentation.py",
    "docs/openai.md": "tests/dialects/openai/test_embeddings.py",
    "docs/debugging.md": "tests/integration/docs/test_fragments.py",
    "docs/devices.md": "tests/integration/docs/test_fragments.py",
    "docs/grpc.md": "tests/integration/docs/test_tutorials.py",
    "docs/handlers.md": "tests/unit/repository/test_documentation.py",
    "docs/index.md": "tests/integration/docs/test_tutorials.py",
    "docs/processes.md": "tests/integration/docs/test_tutorials.py",
    "docs/models.md": "tests/unit/repository/test_documentation.py",
    "docs/notebooks.md": "tests/integration/editors/test_notebooks.py",
    "docs/pictures.md": "tests/integration/docs/test_fragments.py",
    "docs/metrics.md": "tests/integration/docs/test_tutorials.py",
    "docs/migration/mlserver.md": "tests/dialects/mlserver/test_runtimes.py",
    "docs/migration/fastapi.md": "tests/integration/docs/test_tutorials.py",
    "docs/migration/kserve_v1.md": "tests/integration/docs/test_tutorials.py",
    "docs/migration/openvino.md": "tests/integration/docs/test_tutorials.py",
    "docs/migration/torchserve.md": "tests/integration/docs/test_tutorials.py",
    "docs/migration/triton.md": "tests/integration/docs/test_tutorials.py",
    "docs/migration/triton-python.md": "tests/integration/docs/test_tutorials.py",
    "docs/tabular.md": "tests/integration/docs/test_tutorials.py",
    "docs/batching.md": "tests/integration/docs/test_tutorials.py",
    "docs/page.md": "tests/integration/docs/test_tutorials.py",
    "docs/performance.md": "tests/integration/docs/test_tutorials.py",
    "docs/plain-json.md": "tests/integration/docs/test_tutorials.py",
    "docs/postprocess.md": "tests/integration/docs/test_fragments.py",
    "docs/http.md": "tests/integration/docs/test_tutorials.py",
    "docs/production.md": "tests/integration/docs/test_tutorials.py",
    "docs/security.md": "tests/integration/docs/test_tutorials.py",
    "docs/pretrained.md": "tests/integration/packages/test_pretrained.py",
    "docs/protocol.md": "tests/integration/docs/test_shown_commands.py",
    "docs/pull.md": "tests/integration/pull/test_s3.py",
    "docs/record.md": "tests/integration/records/test_documentation.py",
    "docs/reference/index.md": "tests/integration/docs/test_shown_commands.py",
    "docs/reference/model-yaml.md": "tests/unit/test_reference_pages.py",
    "docs/reference/options.md": "tests/unit/test_reference_pages.py",
    "docs/reference/settings.md": "tests/unit/test_reference_pages.py",
    "docs/reload.md": "tests/integration/docs/test_tutorials.py",
    "docs/runbooks.md": "tests/integration/docs/test_shown_commands.py",
    "docs/shadow.md": "tests/shadow/test_documentation.py",
    "docs/sequences.md": "tests/integration/docs/test_fragments.py",
    "docs/troubleshooting.md": "tests/integration/docs/test_troubleshooting.py",
    "docs/streams.md": "tests/integration/docs/test_fragments.py",
    "docs/migration/tfserving.md": "tests/dialects/tfserving/test_page.py",
}
"""The test that runs the code of each page. Blocks `console` install packages, and are left out."""

NOT_RUN = {
    "docs/benchmarks.md": "make bench-peers, which writes it, takes half an hour and ten installations",
    "docs/compatibility.md": "the checkouts are not here",
    "docs/ray.md": "Ray is not here: `make test-ray` runs the applications of examples/ray",
}

BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ |[A-Z_]+=\S+ )*(ksrv [a-z].*)$")
INLINE = re.compile(r"`(ksrv [a-z]+(?: [^`]*)?)`")


def commands_of(text):
    """Return every ksrv command in the blocks and the text."""
    found = INLINE.findall(BLOCK.sub("", text).replace("\n", " "))
    for language, code in BLOCK.findall(text):
        if language in ("", "sh", "console", "shell"):
            lines = re.sub(r"\\\n\s*", "", code).splitlines()
            found += [match[1] for match in map(COMMAND.match, lines) if match]
    return found


def check(words):
    """Parse a command's arguments as the command line does, without running it."""
    name, *arguments = words
    command = main.get_command(click.Context(main), name)
    assert command is not None, f"unknown command {name}"
    context = click.Context(command, info_name=name)
    parser = command.make_parser(context)
    parser.parse_args(args=list(arguments))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_have_the_options_that_they_show(page):
    for line in commands_of(page.read_text()):
        words = shlex.split(
            line.partition(" | ")[0].partition(" > ")[0].replace("…", "x"), comments=True
        )[1:]
        try:
            check(words)
        except (click.UsageError, AssertionError) as error:
            pytest.fail(f"{line}: {error}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_and_yaml_are_such(page):
    for language, code in BLOCK.findall(page.read_text()):
        if language == "python":
            compile(code, str(page), "exec")
        elif language == "yaml":
            list(yaml.safe_load_all(code))


def test_a_page_with_code_is_run_by_a_test_or_says_why_not():
    pages = [page for page in PAGES if BLOCK.search(page.read_text())]
    names = {str(page.relative_to(ROOT)) for page in pages if page.parent.name != "tutorials"}
    assert names == {*RUN_BY, *NOT_RUN}
    for page, test in RUN_BY.items():
        assert page.rpartition("/")[2] in (ROOT / test).read_text()


def test_commands_are_found():
    assert len(commands_of("`ksrv serve x` and\n```\n$ ksrv check y \\\n  --json\nls\n```\n")) == 2
    with pytest.raises(click.UsageError):
        check(["serve", "--no-such"])
