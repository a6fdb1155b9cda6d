"""Statistics of pairs against scikit-learn and scipy, with ties; intervals and tests behave as such."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import average_precision_score

from indexing.evaluation.pair_rows import PairRow, read_pair_rows, write_pair_rows
from indexing.evaluation.pair_statistics import (
    ScoredPairs,
    average_precision,
    exchange_test,
    resampled,
    statistic,
)
from indexing.evaluation.summary import summarise

VALUES = st.lists(st.tuples(st.integers(0, 1), st.integers(-4, 4)), min_size=1, max_size=60)


def pairs_of(labels, scores, positives=None):
    labels, scores = np.asarray(labels, float), np.asarray(scores, float)
    kinds = np.full(len(labels), -1) if positives is None else positives
    return ScoredPairs(scores, labels, np.asarray(kinds, np.int8))


def rows_of(system, labels, scores, *, group="", binary=False):
    return [
        PairRow(system, "t", group, f"p{n}", float(label), int(label) if binary else -1, float(score))
        for n, (label, score) in enumerate(zip(labels, scores, strict=True))
    ]


@settings(max_examples=100)
@given(VALUES)
def test_average_precision_is_scikit_learns_also_with_ties(values):
    labels, scores = zip(*values, strict=True)
    if not any(labels):
        with pytest.raises(ValueError, match="at least one positive"):
            average_precision(labels, scores)
        return
    wanted = average_precision_score(labels, [score / 7 for score in scores])
    assert average_precision(labels, [score / 7 for score in scores]) == pytest.approx(wanted, abs=1e-12)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-5, 5)), min_size=3, max_size=60))
def test_correlations_are_scipys_also_with_ties(values):
    labels, scores = zip(*values, strict=True)
    pairs = pairs_of(labels, np.array(scores) / 3)
    if len(set(labels)) == 1 or len(set(scores)) == 1:
        assert statistic(pairs, "spearman") == statistic(pairs, "pearson") == 0.0
        return
    assert statistic(pairs, "spearman") == pytest.approx(spearmanr(labels, scores).statistic, abs=1e-12)
    assert statistic(pairs, "pearson") == pytest.approx(pearsonr(labels, scores).statistic, abs=1e-12)


@pytest.mark.parametrize("name", ["ap", "spearman", "pearson"])
def test_the_bootstrap_lies_around_the_value_and_narrows_with_more_pairs(name):
    rng = np.random.default_rng(0)
    widths = []
    for size in (100, 1600):
        scores = rng.standard_normal(size)
        labels = np.round(np.clip(scores + rng.standard_normal(size) + 2.5, 0, 5))
        pairs = pairs_of(labels, scores, positives=(labels > 2.5))
        low, high = np.quantile(resampled(pairs, name, seed=0, num=300), [0.025, 0.975])
        assert low < statistic(pairs, name) < high
        widths.append(high - low)
    assert widths[1] == pytest.approx(widths[0] / 4, rel=0.4)


@pytest.mark.parametrize("name", ["ap", "spearman", "pearson"])
def test_exchange_finds_a_difference_that_is_there_and_none_between_equals(name):
    rng = np.random.default_rng(1)
    truth = rng.standard_normal(200)
    labels = np.round(np.clip(truth + 2.5, 0, 5))
    good, bad = (
        pairs_of(labels, truth + noise * rng.standard_normal(200), labels > 2.5) for noise in (0.5, 3)
    )
    assert exchange_test([good], [bad], name, seed=0, num=200) == pytest.approx(1 / 201)
    assert exchange_test([good], [good], name, seed=0, num=200) == 1.0


def test_p_is_about_uniform_between_systems_of_equal_worth_but_different_scale():
    rng = np.random.default_rng(2)
    p_values = []
    for _ in range(80):
        truth = rng.standard_normal(60)
        labels = np.round(np.clip(truth + 2.5, 0, 5))
        left, right = (scale * (truth + rng.standard_normal(60)) for scale in (1, 40))
        sides = pairs_of(labels, left), pairs_of(labels, right)
        p_values.append(exchange_test([sides[0]], [sides[1]], "spearman", seed=0, num=79))
    for level in (0.1, 0.5):
        assert np.mean(np.array(p_values) <= level) == pytest.approx(level, abs=0.13)


def test_groups_weigh_the_same_whatever_their_size():
    rng = np.random.default_rng(0)
    rows = []
    for group, size in (("a", 30), ("b", 300)):
        labels = rng.integers(0, 2, size)
        rows += rows_of("s", labels, labels + rng.standard_normal(size), group=group, binary=True)
    (summary,) = summarise([], pair_rows=rows, baseline="s")
    values = {measure: cell.interval.mean for (_, measure), cell in summary.cells.items()}
    assert list(values) == ["ap", "ap.a", "ap.b"]
    assert values["ap"] == pytest.approx((values["ap.a"] + values["ap.b"]) / 2)
    assert (summary.unit, summary.num_queries) == ("pairs", 330)


def test_wins_are_pairs_placed_nearer_to_their_label():
    labels = [0, 1, 2, 3, 4]
    rows = rows_of("base", labels, [1, 0, 2, 3, 4]) + rows_of("better", labels, labels)
    (summary,) = summarise([], pair_rows=rows, baseline="base")
    comparison = summary.cells["better", "spearman"].comparison
    assert (comparison.num_wins, comparison.num_ties, comparison.num_losses) == (2, 3, 0)
    assert summary.measures == ("spearman", "pearson")


def test_other_pairs_repeated_pairs_and_scores_that_are_not_numbers_are_refused():
    rows = rows_of("a", [0, 1, 2], [0, 1, 2])
    with pytest.raises(ValueError, match="b is not scored on the same pairs as a: p2"):
        summarise([], pair_rows=rows + rows_of("b", [0, 1], [0, 1]), baseline="a")
    with pytest.raises(ValueError, match="two rows of a for pair 'p0'"):
        summarise([], pair_rows=[*rows, rows[0]], baseline="a")
    with pytest.raises(ValueError, match="NaN or infinity"):
        pairs_of([0, 1], [float("nan"), 1])
    with pytest.raises(ValueError, match="baseline 'c' has no rows"):
        summarise([], pair_rows=rows, baseline="c")


def test_rows_come_back_from_parquet(tmp_path):
    import pyarrow.fs

    files = pyarrow.fs.LocalFileSystem()
    rows = rows_of("a", [0, 1], [0.25, 1.5], group="g", binary=True)
    write_pair_rows(files, str(tmp_path / "rows"), rows)
    assert read_pair_rows(files, str(tmp_path / "rows")) == rows
    (tmp_path / "other").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="not a readable Parquet file"):
        read_pair_rows(files, str(tmp_path / "other"))
