from torchcrepe.model import Crepe


class Tiny(Crepe):
    def __init__(self):
        super().__init__("tiny")
