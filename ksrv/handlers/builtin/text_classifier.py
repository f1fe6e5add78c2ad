"""`handler: text_classifier`: the probability of each label, for every text of a batch.

Input `text`, BYTES [-1], in UTF-8. Outputs, of which the first four are answered unless model.yaml
declares others:

- `output`, BYTES [-1]: for each text a JSON object of all labels and their probabilities;
- `label`, BYTES [-1]; `class`, INT64 [-1]; `probability`, FP32 [-1]: the likeliest label;
- `probabilities`, FP32 [-1, classes].

The model is called with the numbers of all words and the offset at which each text begins, as
`torch.nn.EmbeddingBag` takes them. The vocabulary is the file that `parameters: {vocabulary: ...}`
names, else `source_vocab.json` or `source_vocab.pt`; `parameters: {ngrams: 2}` sets the longest run
of words that has a number in the vocabulary. `softmax: false` is for a model file that ends in a softmax.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ksrv.handlers.batch import Batch, utf8_texts
from ksrv.handlers.builtin import ranking
from ksrv.handlers.builtin.optional_outputs import OptionalOutputsHandler
from ksrv.handlers.builtin.tokenizer import UNKNOWN, clean_words, ngrams, read_vocabulary
from ksrv.handlers.context import Context
from ksrv.model.spec import ModelSpec, TensorSpec

INPUT = TensorSpec("text", "BYTES", (-1,))
VOCABULARIES = ("source_vocab.json", "source_vocab.pt")


class TextClassifier(OptionalOutputsHandler):
    """Answers with labels and probabilities.

    Attributes:
        ngrams: The longest run of words that has a number in the vocabulary.
        vocabulary: The number of each word.
    """

    ngrams: int = 2
    vocabulary: dict[str, int]
    default_outputs = (
        TensorSpec("output", "BYTES", (-1,)),
        TensorSpec("label", "BYTES", (-1,)),
        TensorSpec("class", "INT64", (-1,)),
        TensorSpec("probability", "FP32", (-1,)),
    )
    optional_outputs = (TensorSpec("probabilities", "FP32", (-1, -1)),)

    def initialize(self, context: Context) -> None:
        """Load the model and the vocabulary.

        Raises:
            ValueError: The vocabulary is missing, or `ngrams` is no positive whole number.
        """
        super().initialize(context)
        longest = context.parameters.get("ngrams", self.ngrams)
        if isinstance(longest, bool) or not isinstance(longest, int) or longest < 1:
            raise ValueError(f"parameters.ngrams is a positive whole number, not {longest!r}")
        self.ngrams = longest
        self.vocabulary = read_vocabulary(self._vocabulary_file(context))

    def declare(self, spec: ModelSpec) -> ModelSpec:
        """Declare the text input and the outputs that model.yaml leaves open."""
        spec = super().declare(spec)
        return spec if spec.inputs else replace(spec, inputs=(INPUT,))

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

    def postprocess(self, outputs: Any) -> dict[str, Any]:
        """Name the classes of each row."""
        probabilities = ranking.to_array(self.softmax(ranking.primary_output(outputs)))
        probability, classes = ranking.argmax(probabilities)
        return self.select(
            {
                "output": lambda: [
                    {self.label(index): value for index, value in enumerate(row)}
                    for row in probabilities.tolist()
                ],
                "label": lambda: [self.label(index) for index in classes.tolist()],
                "class": lambda: classes.astype(np.int64),
                "probability": lambda: probability,
                "probabilities": lambda: probabilities,
            }
        )

    def _numbers(self, text: str) -> list[int]:
        unknown = self.vocabulary.get(UNKNOWN, 0)
        return [
            self.vocabulary.get(word, unknown) for word in ngrams(clean_words(text), self.ngrams)
        ]

    @staticmethod
    def _vocabulary_file(context: Context) -> Path:
        named = context.parameters.get("vocabulary")
        if named is not None:
            return context.file(str(named))
        for name in VOCABULARIES:
            with suppress(ValueError):
                return context.file(name)
        raise ValueError(
            f"a text_classifier needs a vocabulary: {' or '.join(VOCABULARIES)} in its folder, or "
            f"the file that parameters.vocabulary names"
        )
