"""A model's settings, inputs and outputs, datatypes and rules. No disk, no engine, no protocol."""
