"""A case of foreign code: the server that it calls, the program, and the condition of success."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Places:
    """Folders of a repository's cases.

    Attributes:
        checkout: The checkout, which nothing is written into.
        work: A folder of this repository's runs.
        checkouts: The folder of all checkouts, for models that another repository brings.
    """

    checkout: Path
    work: Path
    checkouts: Path


@dataclass(frozen=True)
class Serving:
    """A server that cases ask.

    Attributes:
        name: Names the folder of its models.
        models: Makes the models in a separate folder, and returns the paths to serve.
        settings: Settings of `ksrv serve`; `{checkout}` and `{here}` are filled in.
        ports: The ports of HTTP and gRPC that the scripts have in their code; 0 for any.
        environment: Variables of the server.
        start_timeout: Seconds until it is ready.
        metrics_port: A port that scripts ask for metrics, which answers as the server's HTTP address; 0 for none.
    """

    name: str
    models: Callable[[Places, Path], list[Path]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    ports: tuple[int, int] = (0, 0)
    environment: Mapping[str, str] = field(default_factory=dict)
    start_timeout: float = 120.0
    metrics_port: int = 0


@dataclass(frozen=True)
class Case:
    """One program of a checkout.

    Attributes:
        name: The script with its arguments, as the table shows it.
        command: The arguments. `{python}`, `{checkout}`, `{work}`, `{http}`, `{grpc}` (HOST:PORT), their
            `_host` and `_port`, `{here}` (the folder of the server's models) and `{log}` (its log) are filled in.
        serving: The server, or None for programs that need none.
        folder: Its working folder, in the checkout or, with `copies`, in their copy; the work folder if empty.
        prints: An expression that its output has to match, beside the status 0.
        copies: Folders and files of the checkout that it runs in a copy of, because it writes beside itself.
        edits: Replacements in the copies: file, old text, new text.
        changed: The change to the script or model of the checkout, in a clause.
        fails: Why it fails, in a sentence, if known.
        tests: Whether it is pytest's, whose tests count one by one.
        failing: Tests that are known to fail, by name or by a prefix that ends with `*`, and why.
        fresh: Whether it needs a server that nobody has asked before, and leaves it to nobody.
        environment: Variables of the program.
        timeout: Seconds that it may take.
        models: The models of Triton's Python backend that it shows to run.
        log: The name in its folder by which it reads the server's log; it needs `copies`.
    """

    name: str
    command: tuple[str, ...]
    serving: Serving | None = None
    folder: str = ""
    prints: str = ""
    copies: tuple[str, ...] = ()
    edits: tuple[tuple[str, str, str], ...] = ()
    changed: str = ""
    fails: str = ""
    tests: bool = False
    failing: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 90.0
    models: tuple[str, ...] = ()
    log: str = ""


@dataclass(frozen=True)
class Repository:
    """The cases of one repository.

    Attributes:
        name: Owner and name, as on GitHub.
        folder: The name of its checkout.
        cases: The cases to run.
        left_out: Scripts that cannot run here, and why.
    """

    name: str
    folder: str
    cases: tuple[Case, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case, or of one of its tests."""

    name: str
    works: bool
    changed: str = ""
    known: str = ""
    found: str = ""
    models: tuple[str, ...] = ()

    @property
    def surprises(self) -> bool:
        """Whether it failed without a sentence in `known`, or works in spite of it."""
        return self.works == bool(self.known)
