"""A model's settings, inputs and outputs, datatypes and rules. Nothing here reads files or knows the engine."""
