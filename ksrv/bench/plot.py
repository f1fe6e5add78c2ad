"""The results of a load as a picture: latency over throughput, as SVG, which any browser shows."""

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from ksrv.bench.report import Result

SHOWN = ("p50", "p99")
WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 50, 60
COLOURS = ("#0b6e99", "#c2410c", "#3f7d20", "#7c3aed", "#a16207", "#be185d")
DASHES = ("", "6 4")


def _ticks(least: float, most: float) -> list[float]:
    """Return round numbers, a decade's 1, 2 and 5, around a range."""
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    return [
        step * 10.0**power
        for power in range(low, high + 1)
        for step in (1, 2, 5)
        if least / 2.5 <= step * 10.0**power <= most * 2.5
    ]


class _Scale:
    """A logarithmic axis."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.ticks = _ticks(min(values), max(values))
        self._low = math.log10(min(self.ticks[0], *values))
        self._span = (math.log10(max(self.ticks[-1], *values)) - self._low) or 1.0
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        part = (math.log10(value) - self._low) / self._span
        return self._start + part * (self._end - self._start)


def plot(results: Sequence[Result], title: str) -> str:
    """Return the picture.

    Args:
        results: The results; those without an answered request are left out.
        title: Its heading.

    Raises:
        ValueError: No result has an answered request.
    """
    shown = [one for one in results if one.throughput > 0 and one.latency_ms.get(SHOWN[0])]
    if not shown:
        raise ValueError("no request was answered, so there is nothing to plot")
    x = _Scale([one.throughput for one in shown], LEFT, WIDTH - RIGHT)
    latencies = [one.latency_ms[name] for one in shown for name in SHOWN]
    y = _Scale(latencies, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 14}" text-anchor="end">requests a second</text>',
        f'<text x="{LEFT}" y="{TOP - 8}" text-anchor="end">ms</text>',
    ]
    for tick in x.ticks:
        parts += _rule(x.at(tick), TOP, x.at(tick), HEIGHT - BOTTOM)
        parts.append(
            f'<text x="{x.at(tick):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick:g}</text>'
        )
    for tick in y.ticks:
        parts += _rule(LEFT, y.at(tick), WIDTH - RIGHT, y.at(tick))
        parts.append(
            f'<text x="{LEFT - 8}" y="{y.at(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    urls = list(dict.fromkeys((one.url, one.loop) for one in shown))
    for number, key in enumerate(urls):
        line = sorted(
            (one for one in shown if (one.url, one.loop) == key), key=lambda one: one.throughput
        )
        for place, name in enumerate(SHOWN):
            colour, dash = COLOURS[number % len(COLOURS)], DASHES[place]
            points = [(x.at(one.throughput), y.at(one.latency_ms[name])) for one in line]
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
            stroke = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}" fill="none"'
            parts.append(f'<polyline points="{path}" {stroke}/>')
            parts += [
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points
            ]
            top = TOP + 16 * (number * len(SHOWN) + place)
            label = escape(f"{key[0]} ({key[1]} loop) {name}")
            parts.append(
                f'<line x1="{LEFT + 12}" y1="{top}" x2="{LEFT + 40}" y2="{top}" {stroke}/>'
            )
            parts.append(f'<text x="{LEFT + 46}" y="{top + 4}">{label}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _rule(x1: float, y1: float, x2: float, y2: float) -> list[str]:
    return [f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>']
