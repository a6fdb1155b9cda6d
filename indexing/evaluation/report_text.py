"""Wording and number formats that all report formats share."""

from collections.abc import Mapping

from indexing.evaluation.measures import Measure

MAX_TEXT_LENGTH = 240
# Smaller whole numbers (years, ports, batch sizes) read better without separators.
SEPARATED_FROM = 10_000


def percent(value: float) -> str:
    """A value in [0, 1] as shown in tables: times 100, one decimal."""
    return f"{100 * value:.1f}"


def measure_label(name: str) -> str:
    """`nDCG@10` for `ndcg_at_10`; other names as they are."""
    try:
        return Measure.named(name).label
    except ValueError:
        return name


def legend(baseline: str) -> str:
    """How to read the tables."""
    return (
        "Values times 100, mean over queries with 95 % bootstrap interval; the best of each column is bold. "
        f"▲ better, ▼ worse than {baseline} (paired randomisation test, Holm-corrected p < 0.05)."
    )


def shorten_text(text: str, *, limit: int = MAX_TEXT_LENGTH) -> str:
    """One line of at most `limit` characters, cut at a space where possible."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    head = line[: limit - 1]
    return (head.rsplit(" ", maxsplit=1)[0] or head).rstrip(" .,;:") + "…"


def flatten_facts(facts: Mapping[str, object], *, prefix: str = "") -> list[tuple[str, str]]:
    """Nested facts as (dotted key, text), in the given order; whole numbers with thousands separators."""
    flat: list[tuple[str, str]] = []
    for key, value in facts.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat += flatten_facts(value, prefix=f"{name}.")
        elif isinstance(value, int) and not isinstance(value, bool) and abs(value) >= SEPARATED_FROM:
            flat.append((name, f"{value:,}"))
        elif isinstance(value, (list, tuple)):
            flat.append((name, ", ".join(map(str, value))))
        else:
            flat.append((name, str(value)))
    return flat
