"""Two classes and no function: nobody can tell which one is meant."""


class One:
    def initialize(self, context):
        self.ready = True

    def handle(self, data, context):
        return data


class Two:
    name = "the second class"
