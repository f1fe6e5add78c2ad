"""Reads the settings of a sentence-transformers folder: its modules, pooling, normalisation, lengths and prompt.

The files are read as versions 2 to 6 of the package write them. The modules after the network are run by `text_encoder`
itself, so a folder needs no package but transformers, which builds the network.
"""

import json
from pathlib import Path
from typing import Any

MODULES = "modules.json"
POOLING = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}
"""The pooling of `text_encoder` by the names of the package; its older versions write `pooling_mode_mean_tokens`."""


def folder_of(file: Path | None, root: Path) -> Path | None:
    """Return the sentence-transformers folder of a model file: its folder or, for `onnx/model.onnx`, the parent."""
    if file is None:
        return None
    above = file.parent.parent
    folders = [file.parent, *([above] if above.is_relative_to(root) else [])]
    return next((folder for folder in folders if (folder / MODULES).is_file()), None)


def folder_parameters(folder: Path) -> dict[str, Any]:
    """Return the parameters of `text_encoder` that a folder gives.

    Raises:
        ValueError: A file cannot be read, or the folder has a module that `text_encoder` does not run.
    """
    found: dict[str, Any] = {"normalize": False}
    for module in _read(folder / MODULES):
        kind = str(module["type"]).rpartition(".")[2]
        if kind == "Pooling":
            found["pooling"] = _pooling(folder / str(module["path"]) / "config.json")
        elif kind == "Normalize":
            found["normalize"] = True
        elif kind != "Transformer":
            raise ValueError(
                f"{MODULES} has the module {kind}; text_encoder runs Transformer, Pooling and Normalize. Write a handler"
            )
    own = _read(folder / "sentence_bert_config.json")
    longest = own.get("max_seq_length") or _read(folder / "tokenizer_config.json").get(
        "model_max_length"
    )
    if isinstance(longest, int) and 0 < longest < 1_000_000:  # 10**30 means that no length is known
        found["max_tokens"] = longest
    about = _read(folder / "config_sentence_transformers.json")
    prompt = (about.get("prompts") or {}).get(about.get("default_prompt_name"))
    return found | {"prompt": prompt or "", "lower": own.get("do_lower_case") is True}


def _pooling(path: Path) -> str:
    given = _read(path)
    modes = given.get("pooling_mode") or [
        key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for key, value in given.items()
        if key.startswith("pooling_mode_") and value is True
    ]
    modes = [modes] if isinstance(modes, str) else modes
    if len(modes) != 1 or modes[0] not in POOLING or given.get("include_prompt") is False:
        raise ValueError(
            f"{path.parent.name}/{path.name} pools by {', '.join(modes) or 'nothing'}; text_encoder knows one of mean, "
            f"cls, max and lasttoken, over all tokens. Write a handler"
        )
    return POOLING[modes[0]]


def _read(path: Path) -> Any:
    """Return the content of a JSON file; an empty mapping for a missing file."""
    try:
        return json.loads(path.read_bytes()) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from None
