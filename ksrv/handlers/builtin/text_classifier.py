"""`handler: text_classifier`: the probability of each label, for every text of a batch.

Input `text`, BYTES [-1], in UTF-8. Outputs; ksrv answers with the first four unless model.yaml declares others:

- `output`, BYTES [-1]: for each text a JSON object of all labels and their probabilities;
- `label`, BYTES [-1]; `class`, INT64 [-1]; `probability`, FP32 [-1]: the likeliest label;
- `probabilities`, FP32 [-1, classes].

The model is called with the numbers of all words and the offset at which each text begins, as
`torch.nn.EmbeddingBag` takes them. The vocabulary is the file that `parameters: {vocabulary: ...}`
names, else `source_vocab.json` or `source_vocab.pt`; `parameters: {ngrams: 2}` sets the longest run
of words that has a number in the vocabulary. `softmax: false` is for a model file that ends in a softmax.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ksrv.handlers.batch import Batch, utf8_texts
from ksrv.handlers.builtin.preset import Preset, parameter, ranked
from ksrv.handlers.builtin.tokenizer import UNKNOWN, clean_words, ngrams, read_vocabulary
from ksrv.handlers.context import Context
from ksrv.handlers.postprocess.scores import labels_of, to_array
from ksrv.model.postprocess import Argmax, Step
from ksrv.model.spec import TensorSpec
from ksrv.request import Array

INPUT = TensorSpec("text", "BYTES", (-1,))
VOCABULARIES = ("source_vocab.json", "source_vocab.pt")


class TextClassifier(Preset):
    """Answers with labels and probabilities.

    Attributes:
        ngrams: The longest run of words that has a number in the vocabulary.
        vocabulary: The number of each word.
    """

    ngrams: int = 2
    vocabulary: dict[str, int]
    default_outputs = ranked()

    def initialize(self, context: Context) -> None:
        """Load the model and the vocabulary.

        Raises:
            ValueError: The vocabulary is missing, or `ngrams` is not a positive whole number.
        """
        super().initialize(context)
        self.ngrams = parameter(context.parameters, "ngrams", self.ngrams)
        self.vocabulary = read_vocabulary(self._vocabulary_file(context))

    def default_inputs(self) -> tuple[TensorSpec, ...]:
        """Return the text input."""
        return (INPUT,)

    def steps(self) -> tuple[Step, ...]:
        """Return a softmax and `argmax`."""
        return (*super().steps(), Argmax(of="probabilities", axis=1))

    def preprocess(self, batch: Batch) -> tuple[Any, Any]:
        """Turn all texts into one list of numbers, and the offset at which each text begins."""
        import torch

        numbers: list[int] = []
        offsets: list[int] = []
        for text in utf8_texts(batch, next(iter(batch))).reshape(-1).tolist():
            offsets.append(len(numbers))
            numbers.extend(self._numbers(text))
        return (
            torch.tensor(numbers, dtype=torch.int64, device=self.device),
            torch.tensor(offsets, dtype=torch.int64, device=self.device),
        )

    def inference(self, /, *inputs: Any, **named: Any) -> Any:
        """Call the model with numbers and offsets."""
        [(numbers, offsets)] = inputs
        return super().inference(numbers, offsets)

    def objects(self, found: Mapping[str, Array]) -> list[Any]:
        """Return an object of all labels and their probabilities for each row."""
        rows = to_array(found["probabilities"])
        names = labels_of(np.arange(rows.shape[1]), self.labels or ()).tolist()
        return [dict(zip(names, row, strict=True)) for row in rows.tolist()]

    def _numbers(self, text: str) -> list[int]:
        unknown = self.vocabulary.get(UNKNOWN, 0)
        return [
            self.vocabulary.get(word, unknown) for word in ngrams(clean_words(text), self.ngrams)
        ]

    @staticmethod
    def _vocabulary_file(context: Context) -> Path:
        named = context.parameters.get("vocabulary")
        for name in VOCABULARIES if named is None else (str(named),):
            with suppress(ValueError):
                return context.file(name)
        raise ValueError(
            f"a text_classifier needs a vocabulary: {' or '.join(VOCABULARIES)} in its folder, or the file that "
            f"parameters.vocabulary names, not {named!r}"
        )
