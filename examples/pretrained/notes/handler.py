import numpy as np
from basic_pitch.inference import unwrap_output, window_audio_file

from ksrv import BaseHandler


class Notes(BaseHandler):
    def inference(self, sound):
        padded = np.pad(sound[0], (3840, 0))
        windows = np.stack([window for window, _ in window_audio_file(padded, 36164)])
        found = self.model(windows)
        return {name: unwrap_output(found[name], sound.shape[1], 30)[None] for name in found}
