"""The rules of the `audio:` section of an input, and the formats of sound files."""

from ksrv.model.spec import AudioSpec, Dimension

FORMATS = ("WAV", "WAVEX", "FLAC", "OGG", "MP3")
"""The formats that are read, by libsndfile's names."""
_STARTS = ((b"fLaC", "FLAC"), (b"OggS", "OGG"), (b"ID3", "MP3"))


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


def sound_format(element: bytes | memoryview) -> str:
    """Return the format that the first bytes of a file name; "" for an unknown format."""
    start = bytes(element[:12])
    if start[:4] == b"RIFF" and start[8:] == b"WAVE":
        return "WAV"
    found = next((name for known, name in _STARTS if start.startswith(known)), "")
    is_frame = start[:1] == b"\xff" and start[1:2] >= b"\xe0"  # the sync word of an MPEG frame
    return found or ("MP3" if is_frame else "")
