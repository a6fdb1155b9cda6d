"""Statistics over seeds, verdicts on claims, and the table and report of a study."""

import json
import math

import numpy as np
import pytest

from indexing.evaluation.pair_rows import PairRow
from indexing.evaluation.pair_statistics import ScoredPairs, exchange_test
from indexing.evaluation.report_input import Curve
from indexing.evaluation.rows import PerQueryRow
from indexing.evaluation.seeds import paired_p_value, task_values
from indexing.evaluation.significance import randomisation_test
from indexing.evaluation.study_report import StudyReport, study_html, study_json, study_latex, study_markdown
from indexing.evaluation.study_table import MEAN, StudyColumn, judge, paired_differences, study_table

RNG = np.random.default_rng(0)


def query_rows(values, groups=None):
    groups = groups or [""] * len(values)
    return [
        PerQueryRow("s", "t", f"q{i}", "map", float(v), group)
        for i, (v, group) in enumerate(zip(values, groups, strict=True))
    ]


def pair_rows(scores, labels, groups=None):
    groups = groups or [""] * len(scores)
    return [
        PairRow("s", "t", group, f"p{i}", float(label), int(label), float(score))
        for i, (score, label, group) in enumerate(zip(scores, labels, groups, strict=True))
    ]


def test_the_value_of_a_task_is_the_mean_of_its_groups():
    rows = query_rows([1.0, 0.0, 0.0, 0.5], ["a", "a", "a", "b"])
    assert task_values(rows, []) == {"map": pytest.approx((1 / 3 + 0.5) / 2)}
    pairs = pair_rows([0.9, 0.1, 0.2, 0.8], [1, 0, 1, 0], ["a", "a", "b", "b"])
    assert task_values([], pairs)["ap"] == pytest.approx((1.0 + 0.5) / 2)


def test_the_test_over_queries_takes_each_query_once_however_many_seeds_there_are():
    left, right = RNG.random((3, 30)), RNG.random((3, 30)) - 0.1
    found = paired_p_value(
        [(query_rows(values), []) for values in left], [(query_rows(values), []) for values in right]
    )
    assert found == pytest.approx(randomisation_test(*_sorted_means(left, right)), abs=0.02)
    copied = paired_p_value([(query_rows(left[0]), [])] * 3, [(query_rows(right[0]), [])] * 3)
    once = paired_p_value([(query_rows(left[0]), [])], [(query_rows(right[0]), [])])
    assert copied == once  # copies of a seed say nothing new


def _sorted_means(left, right):
    order = sorted(range(left.shape[1]), key=lambda i: f"q{i}")
    return left.mean(0)[order], right.mean(0)[order]


def test_copies_of_a_seed_say_nothing_new_about_pairs_either():
    labels = np.tile([1, 0], 15)
    left, right = labels + RNG.standard_normal(30), labels + 2 * RNG.standard_normal(30)
    once = paired_p_value([([], pair_rows(left, labels))], [([], pair_rows(right, labels))])
    thrice = paired_p_value([([], pair_rows(left, labels))] * 3, [([], pair_rows(right, labels))])
    assert thrice == once
    side = [ScoredPairs(s, labels.astype(float), labels.astype(np.int8)) for s in (left, right)]
    apart = exchange_test([side[0]] * 3, [side[1]] * 3, "ap", seed=0)
    assert apart < once  # exchanging them one by one would count each pair three times


def test_other_queries_or_pairs_are_refused():
    with pytest.raises(ValueError, match="different queries"):
        paired_p_value([(query_rows([1, 0]), [])], [(query_rows([1, 0, 1]), [])])
    with pytest.raises(ValueError, match="different pairs"):
        paired_p_value([([], pair_rows([1, 0], [1, 0]))], [([], pair_rows([1, 0, 1], [1, 0, 1]))])


COLUMNS = (
    StudyColumn(name="a", measure="map"),
    StudyColumn(name="b", measure="ap"),
    StudyColumn(name="sts", measure="spearman", in_mean=False),
)


def example_table(**options):
    values = {
        ("new", "a"): {0: 0.5, 1: 0.6, 2: 0.7},
        ("new", "b"): {0: 0.3, 1: 0.3, 2: 0.3},
        ("new", "sts"): {0: 0.9, 1: 0.9, 2: 0.9},
        ("old", "a"): {0: 0.4, 1: 0.5, 2: 0.55},
        ("old", "b"): {0: 0.2, 1: 0.2, 2: 0.1},
        ("fixed", "a"): {0: 0.1},
        ("fixed", "b"): {},
    }
    return study_table(["new", "old", "fixed"], COLUMNS, values, baseline="old", **options)


def test_a_table_has_means_deviations_and_differences_seed_by_seed():
    table = example_table(p_values={("new", "a"): 0.01, ("fixed", "a"): 0.03}, published={("new", "a"): 0.55})
    cell = table.cells["new", "a"]
    assert cell.mean == pytest.approx(0.6)
    assert cell.std == pytest.approx(0.1)
    assert cell.difference == pytest.approx(0.35 / 3)
    assert (cell.num_better, cell.num_paired, cell.published) == (3, 3, 0.55)
    assert cell.p_value == 0.02  # Holm over the two comparisons of the column
    assert table.cells["fixed", "a"].std is None
    assert table.cells["fixed", "a"].num_paired == 3
    assert table.cells["old", "a"].difference is None
    assert table.values["new", MEAN] == {
        0: pytest.approx(0.4), 1: pytest.approx(0.45), 2: pytest.approx(0.5)
    }  # fmt: skip
    assert ("fixed", MEAN) not in table.cells  # it lacks a column
    assert ("fixed", "b") not in table.cells


def test_claims_are_judged_by_the_interval_of_the_difference():
    def verdict(better, than, within=0.0):
        values = {("x", "a"): dict(enumerate(better)), ("y", "a"): dict(enumerate(than))}
        table = study_table(["x", "y"], COLUMNS[:1], values, baseline="y")
        return judge(table, text="", better="x", than="y", within=within, column="a")

    assert verdict([0.5, 0.51, 0.52], [0.4, 0.41, 0.42]).verdict == "seen"
    assert verdict([0.4, 0.41, 0.42], [0.5, 0.51, 0.52]).verdict == "not seen"
    assert verdict([0.4, 0.5, 0.6], [0.45, 0.42, 0.58]).verdict == "cannot be told"
    assert verdict([0.5], [0.4]).verdict == "cannot be told"
    assert verdict([0.501, 0.502], [0.5, 0.501], 0.01).verdict == "seen"
    assert verdict([0.6, 0.61, 0.62], [0.5, 0.51, 0.52], 0.01).verdict == "not seen"
    assert verdict([0.5, 0.53, 0.49], [0.5, 0.5, 0.5], 0.01).verdict == "cannot be told"
    found = verdict([0.5, 0.52], [0.4, 0.41])
    assert found.difference == pytest.approx(0.105)
    reach = 12.7062 * 0.005 * math.sqrt(2) / math.sqrt(2)
    assert found.high - found.difference == pytest.approx(reach, rel=1e-4)


def test_a_single_seed_stands_against_all_of_the_other_side():
    assert paired_differences({0: 0.5, 1: 0.6}, {0: 0.1}) == pytest.approx([0.4, 0.5])
    assert paired_differences({0: 0.5}, {0: 0.1, 7: 0.2}) == pytest.approx([0.4, 0.3])
    assert paired_differences({0: 0.5, 1: 0.6}, {1: 0.1, 2: 0.2}) == pytest.approx([0.5])
    assert paired_differences({}, {0: 1.0}) == []


def test_every_format_says_the_same_and_escapes_what_comes_from_outside():
    table = example_table(p_values={("new", "a"): 0.01})
    report = StudyReport(
        title="A <study> & more",
        about="",
        table=table,
        claims=(judge(table, text="new_1 > old", better="new", than="old"),),
        curves=(Curve(name="new", y_label="score", points=((0.0, 1.0), (1.0, 2.0))),),
        notes=("a note",),
    )
    content = json.loads(study_json(report))
    assert {cell["column"] for cell in content["cells"]} == {"a", "b", "sts", "mean"}
    page = study_html(report)
    assert "A &lt;study&gt; &amp; more" in page
    assert "<study>" not in page
    assert "above the baseline on 3 of 3 seeds; corrected p = 0.0100" in page
    assert "<svg" in page
    text = study_markdown(report)
    assert "| new | **60.0 ± 10.0** ▲ | **30.0 ± 0.0** | **90.0 ± 0.0** | **45.0 ± 5.0** |" in text
    assert r"| new\_1 \> old | seen |" in text
    assert "sts Spearman° | mean |" in text
    latex = study_latex(report)
    assert r"\textbf{60.0 $\pm$ 10.0}$^\blacktriangle$" in latex
    assert latex.count(r"\\") == 4
