"""Evaluates the PromQL subset of the rules and panels below deploy/ on pages of /metrics, as Prometheus does."""

import operator
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Points = list[tuple[float, float]]

NAME = "__name__"
LOOKBACK_SECONDS = 300.0
ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda left, right: left / right if right else float("nan"),
}
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
MATCHES: Mapping[str, Callable[[str, str], bool]] = {
    "MatchOp.Equal": operator.eq,
    "MatchOp.Re": lambda text, pattern: re.fullmatch(pattern, text) is not None,
}
AGGREGATIONS: Mapping[str, Callable[[list[float]], float]] = {"sum": sum, "min": min, "max": max}


@dataclass(frozen=True)
class Scrape:
    """The answer of a target to one scrape.

    Attributes:
        at: The time in seconds, on any clock.
        samples: The values. The label `__name__` has the metric's name.
    """

    at: float
    samples: Vector


class Prometheus:
    """Stores the scrapes of a target, and answers queries at the time of the last scrape.

    Args:
        rules: Rules. Queries may use the metrics of recording rules.
        target: The labels that a scrape adds to each sample.
    """

    def __init__(self, rules: list[dict[str, Any]], **target: str) -> None:
        self._recorded = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
        self._target = target
        self._scrapes: list[Scrape] = []

    def scrape(self, at: float, page: str | None) -> None:
        """Store the answer of a target.

        Args:
            at: The time in seconds, on any monotonic clock.
            page: The target's page, or None if it gave no answer.
        """
        up = frozenset({NAME: "up", **self._target}.items())
        samples: Vector = {up: float(page is not None)}
        for family in text_string_to_metric_families(page or ""):
            for sample in family.samples:
                labels = {NAME: sample.name, **sample.labels, **self._target}
                samples[frozenset(labels.items())] = sample.value
        self._scrapes.append(Scrape(at, samples))

    def query(self, text: str) -> Vector:
        """Return the series of an expression at the time of the last scrape.

        Args:
            text: The expression.
        """
        found = self._value(promql.parse(text))
        return found if isinstance(found, dict) else {frozenset(): found}

    # ---- expressions ------------------------------------------------------------------------

    def _value(self, expression: Any) -> Vector | float:
        match expression:
            case promql.NumberLiteral():
                return float(expression.val)
            case promql.ParenExpr():
                return self._value(expression.expr)
            case promql.VectorSelector():
                return self._instant(expression)
            case promql.AggregateExpr():
                return self._aggregated(expression)
            case promql.BinaryExpr():
                return _combined(
                    str(expression.op), self._value(expression.lhs), self._value(expression.rhs)
                )
            case promql.Call():
                return self._called(expression.func.name, expression.args)
        raise NotImplementedError(f"{expression}: nothing below deploy/ needed this so far")

    def _instant(self, selector: Any) -> Vector:
        if selector.name in self._recorded:
            recorded = self.query(self._recorded[selector.name])
            return {labels | {(NAME, selector.name)}: value for labels, value in recorded.items()}
        found = self._points(selector, LOOKBACK_SECONDS)
        return {labels: points[-1][1] for labels, points in found.items()}

    def _points(self, selector: Any, seconds: float) -> dict[Labels, Points]:
        """Return the points of the series that match a selector, the oldest first."""
        matches = _matcher(selector)
        found: dict[Labels, Points] = {}
        for scrape in self._scrapes:
            if scrape.at >= self._now - seconds:
                for labels, value in scrape.samples.items():
                    if matches(labels):
                        found.setdefault(labels, []).append((scrape.at, value))
        return found

    @property
    def _now(self) -> float:
        return self._scrapes[-1].at

    def _aggregated(self, expression: Any) -> Vector:
        vector = self._value(expression.expr)
        assert isinstance(vector, dict), "scalars are not aggregated"
        kept = expression.modifier.labels if expression.modifier else []
        groups: dict[Labels, list[float]] = {}
        for labels, value in vector.items():
            group = frozenset((name, text) for name, text in labels if name in kept)
            groups.setdefault(group, []).append(value)
        aggregate = AGGREGATIONS[str(expression.op)]
        return {group: aggregate(values) for group, values in groups.items()}

    def _called(self, name: str, arguments: list[Any]) -> Vector | float:
        if name == "time":
            return time.time()
        if name == "histogram_quantile":
            quantile, buckets = map(self._value, arguments)
            assert isinstance(quantile, float), "a quantile is a number"
            assert isinstance(buckets, dict), "buckets are series"
            return _quantiles(quantile, buckets)
        [matrix] = arguments
        seconds = matrix.range.total_seconds()
        found = self._points(matrix.vector_selector, seconds)
        made = {labels: self._over(name, points, seconds) for labels, points in found.items()}
        return {_unnamed(labels): value for labels, value in made.items() if value is not None}

    def _over(self, name: str, points: Points, seconds: float) -> float | None:
        if name == "changes":
            return float(sum(one != next_one for (_, one), (_, next_one) in pairwise(points)))
        increase = _increase(points, self._now - seconds, self._now)
        if name == "rate" and increase is not None:
            return increase / seconds
        assert name in ("rate", "increase"), name
        return increase


def _matcher(selector: Any) -> Callable[[Labels], bool]:
    def matches(labels: Labels) -> bool:
        told = dict(labels)
        return told[NAME] == selector.name and all(
            MATCHES[str(matcher.op)](told.get(matcher.name, ""), matcher.value)
            for matcher in selector.matchers.matchers
        )

    return matches


def _unnamed(labels: Labels) -> Labels:
    return frozenset((name, text) for name, text in labels if name != NAME)


def _increase(points: Points, start: float, end: float) -> float | None:
    """Return the increase of a counter between two times, extrapolated as Prometheus does."""
    if len(points) < 2:
        return None
    (first_at, first), (last_at, _) = points[0], points[-1]
    gained = sum(
        value - before if value >= before else value for (_, before), (_, value) in pairwise(points)
    )
    sampled = last_at - first_at
    interval = sampled / (len(points) - 1)
    gap = min(first_at - start, sampled * first / gained if gained else first_at - start)
    return (
        gained
        / sampled
        * (
            sampled
            + sum(one if one < 1.1 * interval else interval / 2 for one in (gap, end - last_at))
        )
    )


def _combined(op: str, left: Vector | float, right: Vector | float) -> Vector | float:
    """Apply an operator. Two vectors are joined on equal labels."""
    if isinstance(left, float) and isinstance(right, float):
        return ARITHMETIC[op](left, right)
    joined = {labels: (one, other) for labels, one, other in _pairs(left, right)}
    if op in COMPARISONS:
        return {
            labels: one for labels, (one, other) in joined.items() if COMPARISONS[op](one, other)
        }
    return {_unnamed(labels): ARITHMETIC[op](one, other) for labels, (one, other) in joined.items()}


def _pairs(left: Vector | float, right: Vector | float) -> Iterator[tuple[Labels, float, float]]:
    if isinstance(left, float):
        assert isinstance(right, dict), "one side is a vector"
        yield from ((labels, left, value) for labels, value in right.items())
    elif isinstance(right, float):
        yield from ((labels, value, right) for labels, value in left.items())
    else:
        others = {_unnamed(labels): value for labels, value in right.items()}
        for labels, value in left.items():
            if _unnamed(labels) in others:
                yield labels, value, others[_unnamed(labels)]


def _quantiles(quantile: float, buckets: Vector) -> Vector:
    """Return `histogram_quantile`: linear interpolation within the bucket of the rank."""
    histograms: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        told = dict(labels)
        bound = float(told.pop("le"))
        histograms.setdefault(_unnamed(frozenset(told.items())), []).append((bound, count))
    return {labels: _quantile(quantile, sorted(found)) for labels, found in histograms.items()}


def _quantile(quantile: float, buckets: list[tuple[float, float]]) -> float:
    rank = quantile * buckets[-1][1]
    lower, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= rank and count > below:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return float("nan")
