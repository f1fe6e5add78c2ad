"""Reads sound files into the rows of an input: soundfile decodes them, and soxr resamples them.

Limits apply to the header, before any sample is decoded. `soundfile.read(dtype="float32")` gives the same samples; they
are averaged over the channels, and then resampled by `soxr.resample` with its default quality.
"""

import io
import math
from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from ksrv.errors import InvalidRequest, quote
from ksrv.limits import Limits, show_limit
from ksrv.loaders.loaded import ModelLoadError
from ksrv.model.sounds import FORMATS, is_sound
from ksrv.model.spec import HIGHEST_RATE, LOWEST_RATE, AudioSpec, TensorSpec
from ksrv.request import Array, Element, Tensor

_UNKNOWN_SIZES = (0, 0xFFFFFFFF)
"""Sizes of the samples in the header of a WAV file that was written to a pipe."""


class AudioInput:
    """Reads the sound files of one input.

    Raises:
        ModelLoadError: A package is missing.
    """

    def __init__(self, spec: TensorSpec, audio: AudioSpec, limits: Limits) -> None:
        try:
            import soundfile
            import soxr
        except (ImportError, OSError) as error:  # OSError: libsndfile is missing
            raise ModelLoadError(
                f"the input {spec.name!r} takes sounds, which need soundfile and soxr: pip install soundfile soxr ({error})"
            ) from None
        self._soundfile: Any = soundfile
        self._resample = soxr.resample
        self._rank = len(spec.shape)
        self._audio = audio
        self._hop = audio.hop or audio.window or 1
        self._limits = limits

    def read(self, tensor: Tensor) -> Tensor:
        """Return the rows of BYTES with a sound file in each element.

        Raises:
            InvalidRequest: A file cannot be read, or is above a limit.
        """
        name, shape = tensor.name, tensor.shape
        if shape[1:] not in ((), (1,)) or not shape or (self._rank == 1 and shape[0] != 1):
            raise InvalidRequest(
                f"the input {quote(name)} holds sounds in the shape {list(shape)}; expected "
                f"{'[1] for one file' if self._rank == 1 else '[N] for N files'}"
            )
        left: list[float] = [self._limits.audio_seconds, self._limits.audio_samples]
        found = []
        for index, element in enumerate(cast(list[Element], tensor.data)):
            try:
                found.append(self._rows(self._samples(element, left)))
            except (ValueError, self._soundfile.SoundFileError) as error:
                why = getattr(error, "error_string", None)  # without the address of the BytesIO
                text = str(error) if why is None else f"cannot be read: {why}"
                raise InvalidRequest(f"sound {index} of the input {quote(name)} {text}") from None
        if len({rows.shape[-1] for rows in found}) > 1:
            raise InvalidRequest(
                f"the sounds of the input {quote(name)} have different lengths; send each as a separate request"
            )
        if not found:
            raise InvalidRequest(f"the input {quote(name)} holds no sound")
        array = found[0] if len(found) == 1 else np.concatenate(found)
        array = array[0] if self._rank == 1 else array
        return Tensor(name, "FP32", array.shape, array)

    def _samples(self, element: Element, left: list[float]) -> Array:
        """Return the samples of a file at the input's rate.

        Args:
            left: The seconds and the samples that the request may still have.

        Raises:
            ValueError: The file is refused. The text is the predicate of a sentence about it.
        """
        if not is_sound(element):
            raise ValueError("is not a WAV, FLAC, OGG or MP3 file")
        audio = self._audio
        with self._soundfile.SoundFile(io.BytesIO(element)) as file:
            frames, rate, channels = file.frames, file.samplerate, file.channels
            if file.format not in FORMATS:
                raise ValueError(f"is {file.format}; WAV, FLAC, OGG and MP3 are taken")
            if not LOWEST_RATE <= rate <= HIGHEST_RATE:
                raise ValueError(
                    f"has {rate} samples a second; {LOWEST_RATE} to {HIGHEST_RATE} are taken"
                )
            if audio.channels == "strict" and channels > 1:
                raise ValueError(f"has {channels} channels; the model takes 1")
            resampled = -(-frames * audio.rate // rate)
            left[0] -= frames / rate
            left[1] -= max(frames * channels, self._count(resampled) * (audio.window or resampled))
            for value, limit in zip(left, ("audio_seconds", "audio_samples"), strict=True):
                if value < 0:
                    limit = show_limit(limit, getattr(self._limits, limit))
                    raise ValueError(
                        f"has {frames / rate:.1f} seconds in {channels} channels, above the {limit}"
                    )
            file.seek(0)  # as soundfile.read does: without it an MP3 has other last bits
            data = file.read(frames, dtype="float32", always_2d=True)
        if not frames or len(data) < frames or _is_cut(element):
            raise ValueError("has no samples" if not frames else "ends before its last sample")
        if not np.isfinite(data).all():
            raise ValueError("has samples that are not finite numbers")
        samples = data.mean(axis=1) if channels > 1 else data[:, 0]
        if rate != audio.rate:
            samples = self._resample(samples, rate, audio.rate)
        return np.ascontiguousarray(samples)

    def _count(self, samples: int) -> int:
        """Return the rows of a file."""
        window = self._audio.window
        return 1 + max(0, math.ceil((samples - window) / self._hop)) if window else 1

    def _rows(self, samples: Array) -> Array:
        """Return the rows of a file; the last row is filled with zeros."""
        window = self._audio.window
        if window is None:
            return samples[None]
        count = self._count(len(samples))
        padded = np.zeros((count - 1) * self._hop + window, np.float32)
        padded[: len(samples)] = samples
        view = np.lib.stride_tricks.sliding_window_view(padded, window)[:: self._hop]
        return np.ascontiguousarray(view)


def _is_cut(element: Element) -> bool:
    """Tell whether a WAV file announces more bytes of samples than it has; libsndfile would not refuse it."""
    head = bytes(element[:65536])
    at = head.find(b"data", 12) if head[:4] == b"RIFF" else -1
    size = int.from_bytes(head[at + 4 : at + 8], "little")
    return at > 0 and size not in _UNKNOWN_SIZES and at + 8 + size > len(element)


def audio_inputs(inputs: Iterable[TensorSpec], limits: Limits) -> dict[str, AudioInput]:
    """Return the readers of inputs that take sounds, by input name."""
    return {
        entry.name: AudioInput(entry, entry.audio, limits)
        for entry in inputs
        if entry.audio is not None
    }
