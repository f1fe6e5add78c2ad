"""gunicorn's master and the worker processes: start, reload, stop, and changes of models in all workers."""
