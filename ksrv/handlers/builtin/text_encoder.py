"""`handler: text_encoder`: the vector of each text (`role: embedding`), or the score of each pair (`role: rerank`).

The model takes `input_ids`, `attention_mask` and, if it has that input, `token_type_ids`, INT64 [rows, tokens]. The
tokenizer is a `tokenizer.json` beside the model, or the file that `parameters: {tokenizer: ...}` names. Texts of one
batch are padded to the longest.

If the model file is in a sentence-transformers folder, the folder's files give the defaults of all parameters.

- `role: embedding`: input `text`, BYTES [-1], or `token_ids`, INT64 [-1, -1]. Outputs `embedding`, FP32 [-1, -1], and
  `tokens`, INT64 [-1]. `parameters: {pooling: mean, normalize: true}`: `mean` and `last` use the tokens that are no
  padding, `cls` the first token. The answer of a model with one vector for each row is not pooled.
- `role: rerank`: inputs `query` and `text`, BYTES [-1]. Outputs `score`, FP32 [-1], and `tokens`.
  `parameters: {activation: sigmoid}`; with `none` the model's scores are not changed.

`parameters: {max_tokens: 512}` cuts longer texts. Before the tokenizer runs, a text is cut to 64 characters for each of
these tokens. A token id that the tokenizer does not have fails its row.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ksrv.handlers.base import BaseHandler
from ksrv.handlers.batch import Batch, utf8_texts
from ksrv.handlers.builtin.preset import parameter
from ksrv.handlers.builtin.sentence_folder import folder_of, folder_parameters
from ksrv.handlers.context import Context
from ksrv.handlers.postprocess.scores import primary_output, to_array
from ksrv.loaders.arguments import forward_names
from ksrv.model.spec import ModelSpec, TensorSpec
from ksrv.request import Array

POOLING = ("mean", "cls", "last", "max")
ACTIVATIONS = ("sigmoid", "none")
ARGUMENTS = ("input_ids", "attention_mask", "token_type_ids")
MOST_TOKENS = 512
CHARACTERS_PER_TOKEN = 64
"""Texts are cut to so many characters for each token, because a tokenizer takes 200 times the memory of the whole text,
also for the part that it cuts off."""
EMBEDDING_INPUTS = (
    TensorSpec("text", "BYTES", (-1,), optional=True),
    TensorSpec("token_ids", "INT64", (-1, -1), optional=True),
)
RERANK_INPUTS = (TensorSpec("query", "BYTES", (-1,)), TensorSpec("text", "BYTES", (-1,)))
TOKENS = TensorSpec("tokens", "INT64", (-1,))


class TextEncoder(BaseHandler):
    """Answers with vectors or scores."""

    def initialize(self, context: Context) -> None:
        """Load the model and the tokenizer.

        Raises:
            ValueError: A parameter has a value that is not allowed, or the tokenizer is missing.
        """
        super().initialize(context)
        folder = folder_of(context.model_file, context.model_dir)
        given = (folder_parameters(folder) if folder else {}) | context.parameters
        self.prompt, self.lower = str(given.get("prompt", "")), given.get("lower") is True
        self.pooling = parameter(given, "pooling", "mean", POOLING)
        self.activation = parameter(given, "activation", "sigmoid", ACTIVATIONS)
        self.normalize = parameter(given, "normalize", True)
        self.most_tokens = most = parameter(given, "max_tokens", MOST_TOKENS)
        name = str(given.get("tokenizer", "tokenizer.json"))
        path = folder / name if folder and "tokenizer" not in given else context.file(name)
        self.tokenizer = _tokenizer(path, most)
        self.largest_id = max(self.tokenizer.get_vocab().values(), default=0)

    def declare(self, spec: ModelSpec) -> ModelSpec:
        """Declare the inputs and outputs of the role that model.yaml leaves open."""
        reranks = spec.role == "rerank"
        inputs = RERANK_INPUTS if reranks else EMBEDDING_INPUTS
        first = (
            TensorSpec("score", "FP32", (-1,))
            if reranks
            else TensorSpec("embedding", "FP32", (-1, -1))
        )
        return replace(spec, inputs=spec.inputs or inputs, outputs=spec.outputs or (first, TOKENS))

    def preprocess(self, batch: Batch) -> dict[str, Array]:
        """Turn texts into token ids, padded to the longest row of the batch."""
        rows, types = self._numbers(batch)
        longest = max((len(row) for row in rows), default=0) or 1
        numbers = np.zeros((len(rows), longest), np.int64)
        mask = np.zeros_like(numbers)
        kinds = np.zeros_like(numbers)
        for place, (row, kind) in enumerate(zip(rows, types, strict=True)):
            numbers[place, : len(row)] = row
            mask[place, : len(row)] = 1
            kinds[place, : len(row)] = kind
        return {"input_ids": numbers, "attention_mask": mask, "token_type_ids": kinds}

    def _numbers(self, batch: Batch) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
        """Return the token ids and the token types of each row."""
        if "token_ids" in batch:
            rows: list[Sequence[int]] = []
            for row, ids in enumerate(batch["token_ids"][:, : self.most_tokens]):
                known = not ids.size or (ids.min() >= 0 and ids.max() <= self.largest_id)
                # An id outside of the embedding can make a GPU unusable for this process.
                if not known:
                    batch.fail(
                        row, f"row {row} of 'token_ids' has an id outside of 0 to {self.largest_id}"
                    )
                rows.append(ids.tolist() if known else [0])
            return rows, [[0] * len(row) for row in rows]
        names = ("query", "text") if "query" in batch else ("text",)
        columns = [self._texts(batch, name) for name in names if name in batch]
        if not columns:
            for row in range(batch.rows):
                batch.fail(row, "the request has neither 'text' nor 'token_ids'")
            return [[0]] * batch.rows, [[0]] * batch.rows
        encoded = self.tokenizer.encode_batch(
            columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        )
        return [row.ids for row in encoded], [row.type_ids for row in encoded]

    def _texts(self, batch: Batch, name: str) -> list[str]:
        longest = self.most_tokens * CHARACTERS_PER_TOKEN
        texts = [self.prompt + text for text in utf8_texts(batch, name).reshape(-1).tolist()]
        return [(text.strip().lower() if self.lower else text)[:longest] for text in texts]

    def inference(self, /, *_: Any, **named: Any) -> dict[str, Any]:
        """Call the model, and turn its answer into vectors or scores."""
        mask = named["attention_mask"]
        loaded = self.context.loaded
        known = [entry.name for entry in loaded.inputs] if loaded is not None else []
        known = known or list(forward_names(self.model) or ())
        wanted = [name for name in ARGUMENTS if name in known]
        # If the names are unknown or others, the model gets the ids and the mask by position.
        given = {name: self._on_device(named[name]) for name in wanted or ARGUMENTS[:2]}
        outputs = self.model(**given) if wanted else self.model(*given.values())
        answer: Array = to_array(primary_output(outputs)).astype(np.float32, copy=False)
        tokens = mask.sum(axis=1)
        if self.context.spec.role == "rerank":
            scores: Array = answer.reshape(len(mask), -1)[:, 0]
            if self.activation == "sigmoid":
                scores = 1 / (1 + np.exp(-scores))
            return {"score": scores, "tokens": tokens}
        vectors = answer if answer.ndim == 2 else self._pooled(answer, mask)
        if self.normalize:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(lengths, 1e-12)
        return {"embedding": vectors, "tokens": tokens}

    def _on_device(self, array: Array) -> Any:
        loaded = self.context.loaded
        if loaded is None or not loaded.is_torch:
            return array
        import torch

        return torch.from_numpy(array).to(self.device)

    def _pooled(self, answer: Array, mask: Array) -> Array:
        """Return one vector for each row, from the vectors of its tokens."""
        if answer.ndim != 3 or answer.shape[:2] != mask.shape:
            raise ValueError(
                f"the model answered {list(answer.shape)} for {list(mask.shape)} tokens; an encoder answers "
                f"[rows, tokens, dimensions], or [rows, dimensions]"
            )
        if self.pooling == "cls":
            return answer[:, 0]
        if self.pooling == "last":
            last = np.maximum(mask.sum(axis=1) - 1, 0)
            found: Array = answer[np.arange(len(answer)), last]
            return found
        weights = mask[:, :, None].astype(np.float32)
        if self.pooling == "max":
            highest: Array = np.where(weights > 0, answer, -np.inf).max(axis=1)
            return highest
        pooled: Array = (answer * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9)
        return pooled


def _tokenizer(path: Path, most: int) -> Any:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise ValueError(
            "a text_encoder needs the package tokenizers: pip install tokenizers"
        ) from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  the library raises a bare Exception
        raise ValueError(
            f"{path.name} is not a tokenizer of the package tokenizers: {error}"
        ) from None
    tokenizer.no_padding()
    tokenizer.enable_truncation(most)
    return tokenizer
