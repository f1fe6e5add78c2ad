"""Two classes and no function: the handler is ambiguous."""


class One:
    def initialize(self, context):
        self.ready = True

    def handle(self, data, context):
        return data


class Two:
    name = "the second class"
