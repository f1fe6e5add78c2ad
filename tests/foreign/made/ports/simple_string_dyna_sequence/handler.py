import numpy as np

from ksrv import BaseHandler


class Model(BaseHandler):
    """Sums a sequence, and adds its id at its end, as Triton's dyna_sequence backend does."""

    def inference(self, INPUT, sequences):
        sums = []
        for row, sequence in enumerate(sequences):
            total = sequence.state.get("total", 0) + int(INPUT[row, 0])
            sequence.state["total"] = total
            sums.append([total + int(sequence.id) if sequence.end else total])
        return {"OUTPUT": np.array(sums, np.int32)}
