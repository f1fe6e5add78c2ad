"""Needs a package that nobody has."""

import a_package_that_nobody_has


class Lonely:
    def initialize(self, context):
        self.friend = a_package_that_nobody_has

    def handle(self, data, context):
        return data
