"""TorchServe: its archives, handlers, settings, routes and gRPC services.

`archive` turns archives into models, `settings` reads config.properties, `routes` serves TorchServe's API, and `runner`
drives a handler in the handler process. `api` has the classes that the package `ts` exports, and `shims` makes `ts` and
torchvision importable if they are not installed. At start-up only `dialect` and `archive` are imported.
"""
