import time

import numpy as np

from ksrv import BaseHandler, KsrvError


class Model(BaseHandler):
    """Answers its prompt, as often as a parameter says."""

    def inference(self, PROMPT, STREAM, input_ids, batch):
        parameters = batch.requests[0].parameters
        text = np.array([], object) if parameters.get("OUTPUT_0_DIM") else PROMPT
        for _ in range(parameters.get("REPETITION", 1) if STREAM[0, 0] else 1):
            time.sleep(parameters.get("DELAY", 0))
            yield {"TEXT": text.reshape(1, -1)}
        if parameters.get("FAIL_LAST"):
            raise KsrvError("An Error Occurred")
