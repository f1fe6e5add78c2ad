"""Answers with what it was given; no framework."""

import os
import sys


class Seen:
    def initialize(self, context):
        self.at_load = {
            "properties": dict(context.system_properties),
            "yaml": context.model_yaml_config,
            "manifest": context.manifest,
            "cwd": os.getcwd(),
            "first_path": sys.path[0],
        }

    def handle(self, data, context):
        def shown(value):
            return {"type": type(value).__name__, "repr": repr(value)[:80]}

        return [
            {
                "row": {name: shown(value) for name, value in row.items()},
                "headers": context.get_all_request_header(index),
                "id": context.get_request_id(index),
                "rows": len(data),
                **self.at_load,
            }
            for index, row in enumerate(data)
        ]
