"""The dialect of MLflow: folders with an `MLmodel` file, and the routes of MLflow's scoring server.

The server reads `MLmodel` (`folder.py`, `signature.py`) and imports nothing of MLflow. A handler process loads the model
by `mlflow.pyfunc` in the model's interpreter (`runner.py`), whatever its flavour is, so that it answers what
`mlflow.pyfunc.load_model(...).predict` answers.
"""
