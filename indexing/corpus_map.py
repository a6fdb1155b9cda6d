"""A map of a corpus: a sample of its vectors on a plane, coloured by cluster or by a column, as one SVG.

Principal components from numpy: deterministic, no training, and honest about what it shows (the share of the
variance that the plane carries is written below it). Clusters are k-means in the full space, so that colours
can tell apart what the plane lays on top of each other. The SVG needs nothing from elsewhere and no script:
titles show on hover. Must not know where vectors and texts come from.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from indexing.arrays import Float32Array, Float64Array, Int64Array, as_vectors, check_finite
from indexing.exact import normalize_rows
from indexing.faiss_library import cluster_vectors

WIDTH, HEIGHT, MARGIN = 960, 560, 16
LEGEND_LINE, LEGEND_WIDTH = 20, 300
LEGEND_COLUMNS = (WIDTH - 2 * MARGIN) // LEGEND_WIDTH
MAX_POINTS = 5_000
MAX_GROUPS = 12
LABEL_CHARS = 120
OTHER = "other"
# Okabe and Ito's colours, which people with the common kinds of colour blindness can tell apart, and more
# that differ from them in lightness.
COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9"),
    *("#8c6d1f", "#7a5195", "#2f4b7c", "#a05195", "#669900", "#999999"),
)


@dataclass(frozen=True, eq=False)
class CorpusMap:
    """Where the sampled rows lie.

    rows: int64[m], places of the sample in the given vectors, ascending.
    points: float64[m, 2], centred; x carries the most variance.
    groups: int64[m], number of each point's group, an index into `names`.
    names: of the groups, the largest first.
    explained: share of the variance that the plane carries, in [0, 1].
    """

    rows: Int64Array
    points: Float64Array
    groups: Int64Array
    names: tuple[str, ...]
    explained: float


def corpus_map(
    vectors: npt.ArrayLike,
    *,
    column: Sequence[str | None] | None = None,
    texts: Sequence[str] | None = None,
    num_clusters: int = 8,
    max_points: int = MAX_POINTS,
    seed: int = 0,
) -> CorpusMap:
    """Lay a sample on a plane.

    Args:
        vectors: float[n, d], n >= 2.
        column: n values to colour by; the most frequent get a colour each. None: k-means clusters.
        texts: n texts from which clusters get names, the words that are much more frequent in them.
        num_clusters: of k-means, at most `MAX_GROUPS`.
        max_points: size of the sample, drawn with `seed`.
        seed: of sample and k-means.

    Raises:
        ValueError: shapes that do not fit, NaN, fewer than two rows, or a number outside its range.
    """
    array = as_vectors(vectors, what="corpus map")
    check_finite(array, row_ids=None, what="corpus map")
    for name, given in (("column", column), ("texts", texts)):
        if given is not None and len(given) != len(array):
            raise ValueError(f"corpus map: {len(given)} values in {name} for {len(array)} vectors")
    if len(array) < 2 or max_points < 2:
        raise ValueError("corpus map: at least two vectors are needed")
    if not 1 <= num_clusters <= MAX_GROUPS:
        raise ValueError(f"corpus map: num_clusters must be between 1 and {MAX_GROUPS}, got {num_clusters}")
    chosen = np.random.default_rng(seed).permutation(len(array))[:max_points]
    rows = np.sort(chosen).astype(np.int64)
    sample = normalize_rows(array[rows])
    points, explained = _plane(sample)
    if column is not None:
        groups, names = _named_groups([column[row] for row in rows.tolist()])
    else:
        groups = _by_size(cluster_vectors(sample, min(num_clusters, len(sample)), seed=seed))
        sampled = None if texts is None else [texts[row] for row in rows.tolist()]
        names = _cluster_names(groups, sampled)
    return CorpusMap(rows, points, groups, names, explained)


def corpus_map_svg(
    found: CorpusMap,
    labels: Sequence[str],
    *,
    title: str = "Map of the corpus",
    coloured_by: str | None = None,
    num_deleted: int = 0,
) -> str:
    """The map as a self-contained `<svg>` element, for a file of its own or inside an HTML page.

    Args:
        found: from `corpus_map`.
        labels: m texts, one for each sampled row (`found.rows`), shown on hover.
        title: for people who do not see the picture, and above it.
        coloured_by: name of the column that the groups are values of; None: they are clusters.
        num_deleted: documents that are not on the map because they are deleted, told below it.

    Raises:
        ValueError: another number of labels.
    """
    if len(labels) != len(found.rows):
        raise ValueError(f"corpus map: {len(labels)} labels for {len(found.rows)} points")
    top, about = 36, _about(found, num_deleted)
    key = top + HEIGHT + LEGEND_LINE
    height = key + LEGEND_LINE * (-(-len(found.names) // LEGEND_COLUMNS) + 1 + len(about))
    x, y = _screen(found.points, top)
    label = (f"{title}: " if title else "") + "; ".join(about)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(label)}" font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="22" font-size="16" font-weight="600" fill="#1b1f24">{escape(title)}</text>',
    ]
    for number in range(len(found.names)):
        here = np.flatnonzero(found.groups == number)
        parts.append(f'<g fill="{COLOURS[number]}" fill-opacity="0.65">')
        for i in here.tolist():
            text = escape(_short(labels[i]))
            parts.append(f'<circle cx="{x[i]:.1f}" cy="{y[i]:.1f}" r="3"><title>{text}</title></circle>')
        parts.append("</g>")
    parts += _legend(found, key, coloured_by)
    for place, line in enumerate(reversed(about)):
        base = height - 10 - LEGEND_LINE * place
        parts.append(f'<text x="{MARGIN}" y="{base}" fill="#59636e">{escape(line)}</text>')
    return "\n".join([*parts, "</svg>"])


def _about(found: CorpusMap, num_deleted: int) -> list[str]:
    """What is shown and what is not, line by line."""
    shown = (
        f"{len(found.rows):,} documents, two principal components with {100 * found.explained:.0f} % "
        "of the variance; near points are similar, far ones need not differ"
    )
    documents = "document is" if num_deleted == 1 else "documents are"
    return [shown, f"{num_deleted:,} deleted {documents} left out"] if num_deleted else [shown]


def _legend(found: CorpusMap, top: int, coloured_by: str | None) -> list[str]:
    """What the colours mean, and how many points each has."""
    meaning = f"colour: {'clusters of similar texts' if coloured_by is None else coloured_by}"
    parts = [f'<text x="{MARGIN}" y="{top}" font-weight="600" fill="#1b1f24">{escape(meaning)}</text>']
    for number, name in enumerate(found.names):
        line, place = divmod(number, LEGEND_COLUMNS)
        left, base = MARGIN + place * LEGEND_WIDTH, top + LEGEND_LINE * (line + 1)
        size = int((found.groups == number).sum())
        parts.append(f'<circle cx="{left + 5}" cy="{base - 4}" r="5" fill="{COLOURS[number]}"/>')
        parts.append(f'<text x="{left + 16}" y="{base}" fill="#1b1f24">{escape(name)} ({size:,})</text>')
    return parts


def _plane(sample: Float32Array) -> tuple[Float64Array, float]:
    """Points on the first two principal components, float64[m, 2], and their share of the variance."""
    centred = sample.astype(np.float64) - sample.mean(axis=0, dtype=np.float64)
    values, axes = np.linalg.eigh(centred.T @ centred)
    best = axes[:, ::-1][:, :2]
    if best.shape[1] < 2:
        best = np.hstack([best, np.zeros_like(best)])
    # An axis has no direction of its own: the larger part points to the positive side.
    signs = np.sign(best[np.abs(best).argmax(axis=0), np.arange(2)])
    total = float(np.clip(values, 0, None).sum())
    explained = float(np.clip(values[::-1][:2], 0, None).sum()) / total if total else 1.0
    points: Float64Array = centred @ (best * np.where(signs == 0, 1, signs))
    return points, explained


def _by_size(groups: Int64Array) -> Int64Array:
    """Groups renumbered, the largest first; of equal ones that with the first row."""
    numbers, firsts, counts = np.unique(groups, return_index=True, return_counts=True)
    order = np.lexsort((firsts, -counts))
    renumbered = np.empty(int(numbers.max()) + 1, dtype=np.int64)
    renumbered[numbers[order]] = np.arange(len(numbers))
    return renumbered[groups]


def _named_groups(values: Sequence[str | None]) -> tuple[Int64Array, tuple[str, ...]]:
    texts = [OTHER if value is None else value for value in values]
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    ranked = sorted(counts, key=lambda text: (-counts[text], text))
    if len(ranked) > MAX_GROUPS:
        ranked = [*[text for text in ranked if text != OTHER][: MAX_GROUPS - 1], OTHER]
    numbers = {text: number for number, text in enumerate(ranked)}
    groups = [numbers[text] if text in numbers else numbers[OTHER] for text in texts]
    return np.array(groups, dtype=np.int64), tuple(ranked)


def _cluster_names(groups: Int64Array, texts: Sequence[str] | None) -> tuple[str, ...]:
    """Three words for each cluster: in many of its texts and, by their ratio, in few of the others."""
    num_groups = int(groups.max()) + 1
    if texts is None:
        return tuple(f"cluster {number + 1}" for number in range(num_groups))
    words = [{word for word in text.lower().split() if word.isalpha() and len(word) > 3} for text in texts]
    everywhere: dict[str, int] = {}
    for one in words:
        for word in one:
            everywhere[word] = everywhere.get(word, 0) + 1
    names = []
    for number in range(num_groups):
        here = np.flatnonzero(groups == number).tolist()
        counts: dict[str, int] = {}
        for i in here:
            for word in words[i]:
                counts[word] = counts.get(word, 0) + 1
        shares = {
            word: count / len(here) * math.log(count * len(texts) / (len(here) * everywhere[word]))
            for word, count in counts.items()
        }
        best = sorted(shares, key=lambda word: (-shares[word], word))[:3]
        names.append(", ".join(best) if best else f"cluster {number + 1}")
    return tuple(names)


def _screen(points: Float64Array, top: int) -> tuple[Float64Array, Float64Array]:
    """Points on the picture: one scale for both axes, so that distances are not bent."""
    low, high = points.min(axis=0), points.max(axis=0)
    width, height = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
    span = np.maximum(high - low, 1e-12)
    scale = min(width / span[0], height / span[1])
    middle = (low + high) / 2
    x = WIDTH / 2 + scale * (points[:, 0] - middle[0])
    y = top + HEIGHT / 2 - scale * (points[:, 1] - middle[1])
    return x, y


def _short(label: str) -> str:
    return label if len(label) <= LABEL_CHARS else label[: LABEL_CHARS - 4] + " ..."
