"""Tabular models: the files of XGBoost, LightGBM, CatBoost and scikit-learn, served without a handler.

A model is a loader here, and no runner: the default stages of a handler call it. `files.py` finds the files and
completes their settings, `loader.py` loads them, and `table_model.py` turns inputs into a table and calls a
`Predictor`: of `boosters.py` or `estimators.py`.
"""
