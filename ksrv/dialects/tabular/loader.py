"""Loads a tabular model; see the package."""

import signal
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

from ksrv.dialects.tabular.files import LIBRARIES, NAME, SKLEARN, TableFiles, is_pickle
from ksrv.dialects.tabular.table_model import Predictor, TableModel
from ksrv.loaders.loaded import LoadedModel, LoadRequest, ModelLoadError, missing_dependency, short

_PACKAGES = {SKLEARN: "scikit-learn"}
"""The packages that do not have the name of their module."""
_STALE = "InconsistentVersionWarning"
"""scikit-learn's warning about an estimator of another version."""

_REHEARSAL = """import signal, sys
signal.alarm(600)  # a damaged file may last forever
_, path, library, *sys.path = sys.argv
if library != "catboost":  # the others find them missing, and are imported in a fifth of the time
    sys.modules.update(sklearn=None, pandas=None)
from ksrv.dialects.tabular.boosters import Path, read_trees
read_trees(Path(path), library, 1)"""


def load(request: LoadRequest) -> LoadedModel:
    """Load a tabular model: the loader of `ModelConfig.runtime`.

    Raises:
        ModelLoadError: See `load_table_model`; or the declared inputs do not fit the model.
    """
    if request.path is None:
        raise ModelLoadError("a tabular model needs a file; name it under model: in model.yaml")
    options = request.dialect[NAME]
    predictor, note = _read(
        request.path, options["library"], trusted=options["trusted"], threads=request.threads
    )
    known = [one.name for one in predictor.outputs]
    wanted = [name for name in known if request.is_needed(name, known)]
    model = TableModel(predictor, request.inputs, wanted)
    return LoadedModel(
        model,
        False,
        f"{predictor.library}_table",
        model.input_specs,
        model.output_specs,
        tuple(name for name in known if name not in wanted),
        note=note,
        takes_texts=True,
    )


def load_table_model(
    path: Path, library: str = "", *, trusted: bool = False, threads: int = 0
) -> TableModel:
    """Load the file of a tabular model.

    Args:
        path: The file.
        library: The library that wrote it: "sklearn", "xgboost", "lightgbm", "catboost"; "" chooses by the suffix.
        trusted: Whether the file may run code.
        threads: CPU threads; 0 for the library's choice.

    Raises:
        ModelLoadError: The library is missing or cannot read the file, or the file runs code and is not trusted.
    """
    return TableModel(_read(path, library, trusted=trusted, threads=threads)[0])


def _read(path: Path, library: str, *, trusted: bool, threads: int) -> tuple[Predictor, str | None]:
    """Return the model in a file, and a sentence to log about it."""
    if not library and path.suffix not in LIBRARIES:
        raise ModelLoadError(
            f"{path} has the suffix {path.suffix!r}; tabular models end with {', '.join(LIBRARIES)}"
        )
    library = library or LIBRARIES[path.suffix][0]
    package = _PACKAGES.get(library, library)
    if path.suffix in LIBRARIES and not TableFiles().is_model(path):
        raise ModelLoadError(
            f"{path} is not a model: it does not begin as the files of {package} do"
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            module = import_module(library)
            if library != SKLEARN:
                _rehearse(path, library)
            found = _predictor(path, library, trusted=trusted, threads=threads)
        except ModelLoadError:
            raise
        except ModuleNotFoundError as error:
            name = str(error.name).partition(".")[0]
            raise missing_dependency(_PACKAGES.get(name, name), f"the model {path}") from None
        except Exception as error:  # noqa: BLE001  a library raises anything on a file of another version
            stale = _other_versions(caught)
            raise ModelLoadError(
                f"{path} cannot be loaded by {package} {module.__version__}: {short(error)}; {stale or 'it may be damaged'}: "
                f"install the version of {package} that saved it, or save it again with {module.__version__}"
            ) from None
    stale = _other_versions(caught)
    return found, stale and f"{stale}; answers may differ: save it again with this version"


def _rehearse(path: Path, library: str) -> None:
    """Load a file in another process first, because the libraries crash on damaged files, and would end this process.

    Raises:
        ModelLoadError: That process crashed.
    """
    command = [sys.executable, "-I", "-c", _REHEARSAL, str(path), library, *sys.path]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if ended.returncode < 0:
        crash = signal.Signals(-ended.returncode).name
        raise ModelLoadError(
            f"{path} is damaged: {library} crashes when it loads the file ({crash}); copy it or save it again"
        )


def _predictor(path: Path, library: str, *, trusted: bool, threads: int) -> Predictor:
    from ksrv.dialects.tabular.boosters import read_trees, trees_of
    from ksrv.dialects.tabular.estimators import Estimator, read_pickle, read_skops

    if library != SKLEARN:
        return read_trees(path, library, threads)
    read = read_pickle if is_pickle(path, library) else read_skops
    found = read(path, trusted=trusted)
    return trees_of(found, threads) or Estimator(path, found)


def _other_versions(caught: list[warnings.WarningMessage]) -> str | None:
    """Return a clause on the version of scikit-learn that saved an estimator, if it is another than the installed."""
    for one in caught:
        if one.category.__name__ == _STALE:
            message = one.message
            return (
                f"it was saved by scikit-learn {getattr(message, 'original_sklearn_version', '?')}, and "
                f"{getattr(message, 'current_sklearn_version', '?')} is installed"
            )
    return None
