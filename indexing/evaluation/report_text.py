"""Wording and number formats that all report formats share."""

from collections.abc import Mapping, Sequence

from indexing.evaluation.measures import Measure

MAX_TEXT_LENGTH = 240
_LABELS = {"useb_map_at_100": "USEB MAP@100", "ap": "AP", "spearman": "Spearman", "pearson": "Pearson"}
# Smaller whole numbers (years, ports, batch sizes) read better without separators.
SEPARATED_FROM = 10_000


def percent(value: float) -> str:
    """A value in [0, 1] as shown in tables: times 100, one decimal."""
    return f"{100 * value:.1f}"


def measure_label(name: str) -> str:
    """`nDCG@10` for `ndcg_at_10`; other names as they are."""
    measure, _, group = name.partition(".")
    try:
        label = Measure.named(measure).label
    except ValueError:
        label = _LABELS.get(measure, measure)
    return f"{label}, {group}" if group else label


def legend(baseline: str) -> str:
    """How to read the tables."""
    return (
        "Values times 100 with 95 % bootstrap interval: means over queries, for tasks of pairs one value of "
        "all pairs together. The best of each column is bold. "
        f"▲ better, ▼ worse than {baseline} (paired randomisation test, Holm-corrected p < 0.05)."
    )


def mean_title(tasks: Sequence[str], measures: Sequence[str]) -> str:
    """How the mean of the main scores is called; only USEB's own four protocols make USEB's average."""
    useb = ("map", "useb_map_at_100", "map", "ap")
    is_useb = len(tasks) == len(useb) and sorted(measures) == sorted(useb)
    return "Mean of the main scores" + (" (USEB average, if these are its four tasks)" if is_useb else "")


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
