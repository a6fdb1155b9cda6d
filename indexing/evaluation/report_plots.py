"""Two small plots as HTML fragments: curves over steps, and means with their intervals.

Text stays HTML and only lines are SVG, stretched to the page, so labels keep their size on a phone. Colours
come from the style sheet. Must not know reports or statistics.
"""

import math
from collections.abc import Sequence
from html import escape

from indexing.evaluation.report_input import Curve
from indexing.evaluation.report_text import percent
from indexing.evaluation.significance import Interval

NUM_COLOURS = 6


def curve_plot(curves: Sequence[Curve]) -> str:
    """One figure with all curves, which share their axes' labels; "" without any point.

    Raises:
        ValueError: a point that is not finite.
    """
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        return ""
    points = [point for curve in drawn for point in curve.points]
    if not all(math.isfinite(x) and math.isfinite(y) for x, y in points):
        raise ValueError(f"curve {drawn[0].name!r}: every point must be finite")
    x_ticks = _ticks(min(x for x, _ in points), max(x for x, _ in points), max_count=5)
    reached = [edge for curve in drawn for low, high in _edges(curve) for edge in (low, high)]
    y_ticks = _ticks(min(reached), max(reached), max_count=5)
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low, y_high = y_ticks[0], y_ticks[-1]

    def place_x(x: float) -> float:
        return 100 * (x - x_low) / ((x_high - x_low) or 1.0)

    def place_y(y: float) -> float:
        return 100 - 100 * (y - y_low) / ((y_high - y_low) or 1.0)

    grid = "".join(f'<line x1="0" x2="100" y1="{place_y(y):.2f}" y2="{place_y(y):.2f}"/>' for y in y_ticks)
    labels = "".join(f'<span class="y" style="top:{place_y(y):.2f}%">{_number(y)}</span>' for y in y_ticks)
    for x in x_ticks:
        if x_low <= x <= x_high:
            side = " last" if place_x(x) > 94 else ""
            labels += f'<span class="x{side}" style="left:{place_x(x):.2f}%">{_number(x)}</span>'
    paths, keys = "", ""
    for number, curve in enumerate(drawn):
        colour = f"var(--c{number % NUM_COLOURS})"
        steps = " L".join(f"{place_x(x):.2f} {place_y(y):.2f}" for x, y in curve.points)
        # A path of one point draws nothing; a zero-length line with round caps is a dot.
        start = f"{place_x(curve.points[0][0]):.2f} {place_y(curve.points[0][1]):.2f}"
        paths += f'<path d="M{start} L{steps}" style="stroke:{colour}"/>'
        if curve.spreads:
            for (x, _), (low, high) in zip(curve.points, _edges(curve), strict=True):
                bar = f"M{place_x(x):.2f} {place_y(low):.2f} L{place_x(x):.2f} {place_y(high):.2f}"
                paths += f'<path class="bar" d="{bar}" style="stroke:{colour};opacity:.45"/>'
        last = curve.points[-1][1]
        keys += f'<span><i style="background:{colour}"></i>{escape(curve.name)} (last {last:.4g})</span>'
    bands = dict.fromkeys(curve.band for curve in drawn if curve.spreads)
    title = f"{escape(drawn[0].y_label)} by {escape(drawn[0].x_label)}"
    title += "".join(f", bars: {escape(band)}" for band in bands)
    return (
        f"<figure><figcaption>{title}</figcaption>"
        f'<div class="plot" role="img" aria-label="{title}">'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">{grid}{paths}</svg>'
        f'{labels}</div><div class="keys">{keys}</div></figure>'
    )


def _edges(curve: Curve) -> list[tuple[float, float]]:
    """Lower and upper end of the band at each point."""
    spreads = curve.spreads or (0.0,) * len(curve.points)
    return [(y - spread, y + spread) for (_, y), spread in zip(curve.points, spreads, strict=True)]


def interval_plot(
    intervals: Sequence[tuple[str, Interval]], *, baseline: str, label: str, band: str = "95 % intervals"
) -> str:
    """Means as dots with their intervals as bars, one line for each system, on a shared axis, times 100.

    band: what the bars are.
    """
    ticks = _ticks(
        min(100 * interval.low for _, interval in intervals),
        max(100 * interval.high for _, interval in intervals),
        max_count=5,
    )
    low, high = ticks[0], ticks[-1]

    def place(value: float) -> float:
        return 100 * (100 * value - low) / ((high - low) or 1.0)

    rows = ""
    for system, interval in intervals:
        kind = "row base" if system == baseline else "row"
        left, width = place(interval.low), place(interval.high) - place(interval.low)
        rows += (
            f'<div class="{kind}"><span class="name">{escape(system)}</span><span class="track">'
            f'<span class="range" style="left:{left:.2f}%;width:{width:.2f}%"></span>'
            f'<span class="dot" style="left:{place(interval.mean):.2f}%"></span></span>'
            f'<span class="num">{percent(interval.mean)}</span></div>'
        )
    axis = "".join(f"<span>{_number(tick)}</span>" for tick in ticks)
    return (
        f'<div class="dots" role="img" aria-label="{escape(label)} with {escape(band)}">{rows}'
        f'<div class="row"><span class="name meta">{escape(label)}</span>'
        f'<span class="axis">{axis}</span><span></span></div></div>'
    )


def _ticks(low: float, high: float, *, max_count: int) -> list[float]:
    """Round, evenly spaced numbers that enclose [low, high]."""
    if high <= low:
        low, high = low - (abs(low) / 10 or 1.0), low + (abs(low) / 10 or 1.0)
    rough = (high - low) / (max_count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * number for number in range(first, last + 1)]


def _number(value: float) -> str:
    text = f"{value:,.6f}".rstrip("0").rstrip(".")
    return text if text not in ("-0", "0") or abs(value) < 1e-12 else f"{value:.2g}"
