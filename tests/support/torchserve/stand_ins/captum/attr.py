"""The names that the handlers make objects of when they are initialized."""


class IntegratedGradients:
    def __init__(self, model):
        self.model = model


class LayerIntegratedGradients:
    def __init__(self, model, layer):
        self.model, self.layer = model, layer


class TokenReferenceBase:
    def __init__(self, reference_token_idx=0):
        self.index = reference_token_idx
