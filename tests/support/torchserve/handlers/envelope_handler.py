"""Answers with what an envelope handed over."""


class Unwrapped:
    def initialize(self, context):
        self.ready = True

    def handle(self, data, context):
        return [{"type": type(item).__name__, "repr": repr(item)[:80]} for item in data]
