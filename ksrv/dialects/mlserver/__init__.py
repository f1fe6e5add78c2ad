"""The dialect of MLServer: folders with a model-settings.json, and custom runtimes that import `mlserver`."""
