"""The judgement of a soak: what grows is named, and noise is not growth."""

import random

from tests.soak.trend import Series, growing


def series(rise: float, *, noise: float = 1.0, seed: int = 0, count: int = 180) -> Series:
    choose = random.Random(seed)
    values = [100 + rise * at / count + choose.gauss(0, noise) for at in range(count)]
    return Series("memory", "worker 1", allowed=5.0, values=list(values))


def test_noise_is_not_reported() -> None:
    """Now and then chance sorts it: of some hundred series of a soak, one may be looked at again."""
    assert len(growing([series(0, noise=20, seed=seed) for seed in range(400)], 0.3)) <= 2


def test_steady_rise_is_reported() -> None:
    [sentence] = growing([series(0), series(15)], 0.3)
    assert sentence.startswith("memory of worker 1 grows: +")


def test_rise_below_the_limit_passes() -> None:
    assert not growing([series(6)], 0.3)  # of which 4.2 are after the warm-up


def test_larger_of_share_and_number_is_allowed() -> None:
    one = series(15)
    one.share = 0.2
    assert not growing([one], 0.3)


def test_rise_during_warm_up_passes() -> None:
    one = series(0)
    one.values = [*range(60), *one.values[60:]]
    assert not growing([one], 0.34)
    one.values = [*range(60), *range(60, 180)]
    assert growing([one], 0.34)


def test_single_step_passes_and_many_steps_are_reported() -> None:
    steps = Series("descriptors", "worker 1", allowed=5.0)
    steps.values = [100.0] * 150 + [120.0] * 30
    assert not growing([steps], 0.0)
    steps.values = [float(100 + 2 * (at // 15)) for at in range(180)]
    assert growing([steps], 0.0)


def test_missing_samples_are_ignored() -> None:
    one = series(15)
    one.values[::3] = [None] * 60
    assert growing([one], 0.3)
    one.values = [None] * 180
    assert not growing([one], 0.3)
