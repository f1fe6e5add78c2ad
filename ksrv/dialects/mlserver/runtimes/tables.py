"""The runtimes of scikit-learn, XGBoost, LightGBM and CatBoost.

`ksrv.dialects.tabular` loads the files. They answer as MLServer's runtimes do.
"""

from pathlib import Path
from typing import Any

from ksrv.dialects.mlserver.api import types as t
from ksrv.dialects.mlserver.api.codecs import NumpyCodec, NumpyRequestCodec, PandasCodec
from ksrv.dialects.mlserver.api.model import MLModel, get_model_uri
from ksrv.dialects.tabular.estimators import read_pickle, read_skops
from ksrv.dialects.tabular.loader import load_table_model


class TableRuntime(MLModel):
    """The base of the runtimes.

    Attributes:
        library: The library that reads the file.
        files: The names under which the file is found in a folder.
        served: The outputs that a client may ask for: methods of the model.
        refusals: The errors of the library for inputs that do not fit.
    """

    library = ""
    files: tuple[str, ...] = ()
    served: tuple[str, ...] = ("predict",)
    refusals: tuple[type[Exception], ...] = (ValueError, TypeError, KeyError)

    async def load(self) -> bool:
        """See `MLModel`."""
        if (path := Path(await get_model_uri(self.settings, self.files))).is_dir():
            raise FileNotFoundError(f"{path} has no {' or '.join(self.files)}; set parameters.uri")
        trusted = getattr(self.settings.parameters, "trust", None) == "pickle"
        self._model = self.read(path, trusted=trusted)
        return True

    def read(self, path: Path, *, trusted: bool) -> Any:
        """Return the object in a file whose methods are called."""
        loaded = load_table_model(path, self.library, trusted=trusted)
        self.refusals += loaded.predictor.refusals
        return loaded.estimator

    async def predict(self, payload: t.InferenceRequest) -> t.InferenceResponse:
        """See `MLModel`."""
        default = (self.settings.parameters.extra or {}).get("predict_fn", "predict")
        wanted = payload.outputs or [t.RequestOutput(name=str(default))]
        known = [name for name in self.served if hasattr(self._model, name)]
        table = self.decode_request(payload, default_codec=NumpyRequestCodec)
        outputs: list[t.ResponseOutput] = []
        for each in wanted:
            if each.name not in known:
                raise t.InferenceError(f"no output {each.name!r}; expected {', '.join(known)}")
            try:
                values = getattr(self._model, each.name)(table)
            except self.refusals as error:
                raise t.InferenceError(f"{each.name} refuses the inputs: {error}") from error
            if PandasCodec.can_encode(values):
                outputs += PandasCodec.encode_outputs(values)
            else:
                outputs.append(self.encode(values, each, default_codec=NumpyCodec))
        return t.InferenceResponse(model_name=self.name, outputs=outputs)


class SKLearnModel(TableRuntime):
    """A model of scikit-learn."""

    files = ("model.joblib", "model.pickle", "model.pkl", "model.skops")
    served = ("predict", "predict_proba", "transform")

    def read(self, path: Path, *, trusted: bool) -> Any:
        """See `TableRuntime`; estimators that do not know their columns are served too."""
        return (read_skops if path.suffix == ".skops" else read_pickle)(path, trusted=trusted)


class XGBoostModel(TableRuntime):
    """A model of XGBoost. A file of a Booster answers as a regressor, as with MLServer."""

    library = "xgboost"
    files = ("model.bst", "model.json", "model.ubj")
    served = ("predict", "predict_proba")

    def read(self, path: Path, *, trusted: bool) -> Any:
        """See `TableRuntime`."""
        booster = super().read(path, trusted=trusted)
        import xgboost

        is_classifier = '"classifier"' in (booster.attr("scikit_learn") or "")
        model = xgboost.XGBClassifier() if is_classifier else xgboost.XGBRegressor()
        model.load_model(booster.save_raw())
        return model


class LightGBMModel(TableRuntime):
    """A Booster of LightGBM."""

    library = "lightgbm"
    files = ("model.bst", "model.txt")


class CatboostModel(TableRuntime):
    """A model of CatBoost."""

    library = "catboost"
    files = ("model.cbm", "model.bin")
