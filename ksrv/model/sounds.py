"""The rules of the `audio:` section of an input, and the formats of sound files."""

from ksrv.model.spec import AudioSpec, Dimension

FORMATS = ("WAV", "WAVEX", "FLAC", "OGG", "MP3")
"""The formats that are read, by libsndfile's names."""
_STARTS = (b"fLaC", b"OggS", b"ID3")
"""The first bytes of FLAC, OGG and MP3 files."""


def audio_problem(audio: AudioSpec, datatype: str, shape: tuple[Dimension, ...]) -> str:
    """Return why an input cannot have an `audio:` section; "" if it can."""
    if datatype != "FP32":
        return f"sounds become FP32, not {datatype}"
    if len(shape) != 2 and (len(shape) != 1 or audio.window):
        return f"an input of sounds has the shape [-1, SAMPLES], not {len(shape)} dimensions"
    if audio.hop and not audio.window:
        return "hop is the distance between the starts of windows; add window"
    if audio.window and shape[-1] not in (-1, audio.window):
        return f"a window has {audio.window} samples; the shape says {shape[-1]}"
    return ""


def is_sound(element: bytes | memoryview) -> bool:
    """Tell whether a file begins as WAV, FLAC, OGG or MP3 files do."""
    start = bytes(element[:12])
    is_wave = start[:4] == b"RIFF" and start[8:] == b"WAVE"
    is_frame = start[:1] == b"\xff" and start[1:2] >= b"\xe0"  # the sync word of an MPEG frame
    return is_wave or is_frame or start.startswith(_STARTS)
