"""Runs a sample of a model's requests on another version, too, compares the answers, and promotes that version."""

from ksrv.model.config import ModelSource


def is_shadow(source: ModelSource) -> bool:
    """Tell whether a version is the version that `shadow` names."""
    shadow = source.config.shadow if source.config else None
    return shadow is not None and str(shadow.version) == source.version
