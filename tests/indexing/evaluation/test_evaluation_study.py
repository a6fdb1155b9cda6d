"""Statistics over seeds, verdicts on claims, and the table and report of a study."""

import json
import math

import numpy as np
import pytest

from indexing.evaluation.pair_rows import PairRow
from indexing.evaluation.pair_statistics import ScoredPairs, exchange_test
from indexing.evaluation.rank_agreement import RankAgreement, judge_ranks, rank_agreement
from indexing.evaluation.report_input import Curve
from indexing.evaluation.rows import PerQueryRow
from indexing.evaluation.seeds import Comparison, compare, matched_seeds
from indexing.evaluation.significance import randomisation_test
from indexing.evaluation.study_claims import (
    JudgedClaim,
    LabelsFound,
    Question,
    joint_interval,
    judge_all,
    judge_labels,
    judge_together,
)
from indexing.evaluation.study_report import StudyReport, study_html, study_json, study_latex, study_markdown
from indexing.evaluation.study_table import MEAN, StudyColumn, paired_differences, study_table
from indexing.evaluation.task_values import task_values

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


def queries(values, groups=None):
    """Scores by group, as `compare` takes them."""
    names = np.array(groups or [""] * len(values))
    return {str(name): np.asarray(values, float)[names == name] for name in dict.fromkeys(names)}


def pairs(scores, labels):
    labels = np.asarray(labels, float)
    return {"": ScoredPairs(np.asarray(scores, float), labels, labels.astype(np.int8))}


def by_seed(*scores):
    return dict(enumerate(scores))


def test_the_test_over_queries_takes_each_query_once_however_many_seeds_there_are():
    left, right = RNG.random((3, 30)), RNG.random((3, 30)) - 0.1
    found = compare([(by_seed(*map(queries, left)), by_seed(*map(queries, right)))])
    assert found.p_value == pytest.approx(randomisation_test(left.mean(0), right.mean(0)), abs=0.03)
    differences = left.mean(0) - right.mean(0)
    assert found.error == pytest.approx(differences.std() / math.sqrt(30), rel=0.1)
    one, other = queries(left[0]), queries(right[0])
    assert compare([(by_seed(one, one, one), by_seed(other, other, other))]).p_value == (
        compare([(by_seed(one), by_seed(other))]).p_value
    )  # copies of a seed say nothing new


def test_copies_of_a_seed_say_nothing_new_about_pairs_either():
    labels = np.tile([1, 0], 15)
    left, right = (pairs(labels + f * RNG.standard_normal(30), labels) for f in (1, 2))
    once = compare([({0: left}, {0: right})])
    thrice = compare([({0: left, 1: left, 2: left}, {0: right, 1: right, 2: right})])
    assert (thrice.p_value, thrice.error) == (once.p_value, pytest.approx(once.error))
    apart = exchange_test([left[""]] * 3, [right[""]] * 3, "ap", seed=0)
    assert apart < once.p_value  # exchanging them one by one would count each pair three times


def test_seeds_of_pairs_are_matched_by_their_number_and_not_by_their_place():
    labels = np.tile([1, 0], 30)
    runs = [pairs(labels + 3 * RNG.standard_normal(60), labels) for _ in range(4)]
    # Seed for seed the same scores; seed 0 is gone on one side, seed 3 on the other.
    found = compare([({0: runs[0], 1: runs[1], 2: runs[2]}, {1: runs[1], 2: runs[2], 3: runs[3]})])
    assert (found.seeds, found.p_value, found.error) == (((1, 1), (2, 2)), 1.0, 0.0)
    assert compare([({0: runs[0], 1: runs[1]}, {2: runs[2], 3: runs[3]})]) is None
    assert matched_seeds([0, 1, 2], [5]) == [(0, 5), (1, 5), (2, 5)]


def test_the_error_over_pairs_is_that_of_the_difference_and_not_of_two_samples():
    labels = np.tile([1, 0], 100)
    scores = labels + RNG.standard_normal(200)
    near = compare(
        [({0: pairs(scores, labels)}, {0: pairs(scores + 1e-3 * RNG.standard_normal(200), labels)})]
    )
    far = compare([({0: pairs(scores, labels)}, {0: pairs(labels + RNG.standard_normal(200), labels)})])
    assert near.error < far.error / 10


def test_the_mean_over_tasks_is_tested_within_each_task():
    """Two tasks that each say little say enough together, and opposite ones cancel."""
    gains = np.tile([0.3, -0.1, 0.25, -0.2, 0.05], 4)
    better, base = {0: queries(gains)}, {0: queries(np.zeros(20))}
    many = {0: queries(np.tile(gains, 3) + 0.02)}, {0: queries(np.zeros(60))}
    alone, both = compare([(better, base)]), compare([(better, base), many])
    assert both.p_value < alone.p_value
    assert compare([(better, base), (base, better)]).p_value == pytest.approx(1.0, abs=0.01)


def test_other_queries_or_pairs_are_refused():
    with pytest.raises(ValueError, match="different queries"):
        compare([({0: queries([1, 0])}, {0: queries([1, 0, 1])})])
    with pytest.raises(ValueError, match="different queries"):
        compare([({0: queries([1, 0], ["a", "b"])}, {0: queries([1, 0], ["a", "c"])})])


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


def verdict(better, than, *, p=0.001, error=0.0, smallest=0.0, **options):
    values = {("x", "a"): dict(enumerate(better)), ("y", "a"): dict(enumerate(than))}
    table = study_table(["x", "y"], COLUMNS[:1], values, baseline="y")
    question = Question(text="", better="x", than="y", column="a", **options)
    found = {} if p is None else {question.compared: Comparison(p_value=p, error=error, seeds=())}
    return judge_all(table, [question], found, smallest=smallest)[0]


HIGH, LOW = [0.5, 0.51, 0.525], [0.4, 0.41, 0.42]


def test_a_claim_is_seen_where_seeds_and_queries_and_the_size_of_the_difference_agree():
    assert verdict(HIGH, LOW).verdict == "seen"
    assert verdict(LOW, HIGH).verdict == "not seen"
    assert verdict(HIGH, LOW, p=0.2).verdict == "cannot be told"
    assert verdict(HIGH, LOW, p=None).verdict == "cannot be told"  # rows are missing
    assert verdict(HIGH, LOW, error=0.1).verdict == "cannot be told"
    assert verdict([0.4, 0.5, 0.6], [0.45, 0.42, 0.58]).verdict == "cannot be told"
    assert verdict([0.5], [0.4]).verdict == "cannot be told"


def test_a_difference_too_small_to_count_is_not_seen_however_sure_it_is():
    tiny = [value + 0.00008 for value in LOW]
    assert verdict(tiny, LOW, smallest=0.0).verdict == "seen"
    found = verdict(tiny, LOW, smallest=0.005)
    assert found.difference == pytest.approx(0.00008)
    assert found.verdict == "not seen"
    assert verdict([0.404, 0.415, 0.423], LOW, smallest=0.005).verdict == "cannot be told"


def test_nearness_needs_the_whole_interval_inside_the_bound_and_the_sign_where_it_is_asked_for():
    near = [0.403, 0.413, 0.4231]
    assert verdict(near, LOW, within=0.01).verdict == "seen"
    assert verdict(near, LOW, within=0.01, error=0.01).verdict == "cannot be told"
    assert verdict(HIGH, LOW, within=0.01).verdict == "not seen"
    assert verdict([0.4, 0.43, 0.39], [0.4, 0.4, 0.4], within=0.01).verdict == "cannot be told"
    assert verdict(near, LOW, within=0.01, ahead=True).verdict == "seen"
    assert verdict(LOW, near, within=0.01).verdict == "seen"
    assert verdict(LOW, near, within=0.01, ahead=True).verdict == "not seen"  # near, but behind
    assert verdict(near, LOW, within=0.01, ahead=True, p=0.2).verdict == "cannot be told"


def test_not_below_needs_the_whole_interval_above_the_margin():
    behind = [value - 0.004 for value in LOW]
    assert verdict(HIGH, LOW, not_below=0.01).verdict == "seen"
    assert verdict(behind, LOW, not_below=0.01, p=0.001).verdict == "seen"
    assert verdict(behind, LOW, not_below=0.003).verdict == "not seen"
    assert verdict(behind, LOW, not_below=0.01, error=0.005).verdict == "cannot be told"
    assert verdict([0.5], [0.4], not_below=0.01).verdict == "cannot be told"


def test_the_interval_holds_seeds_and_queries_and_is_never_narrower_than_that_of_the_seeds():
    of_seeds = 12.7062 * 0.005  # Student's t with one degree of freedom, standard error 0.005
    low, high = joint_interval([0.1, 0.11], 0.0)
    assert (low + high) / 2 == pytest.approx(0.105)
    assert (high - low) / 2 == pytest.approx(of_seeds, rel=1e-4)
    assert np.diff(joint_interval([0.1, 0.11], 0.005)) / 2 >= of_seeds - 1e-12
    assert np.diff(joint_interval([0.1, 0.1], 0.01))[0] / 2 == pytest.approx(1.96 * 0.01, rel=1e-3)


def test_p_values_of_claims_are_corrected_over_the_study_each_comparison_once():
    table = example_table()
    asked = [("new", "old", "a"), ("new", "old", "a"), ("new", "old", "b")]
    questions = [Question(text="", better=b, than=t, column=c) for b, t, c in asked]
    found = {
        key: Comparison(p_value=p, error=0.0, seeds=())
        for key, p in zip(asked[1:], [0.03, 0.01], strict=True)
    }
    judged = judge_all(table, questions, found, smallest=0.0)
    assert [claim.p_value for claim in judged] == [0.03, 0.03, 0.02]


def test_a_claim_about_labelled_rows_is_judged_by_what_the_searches_found():
    def found(answer, too_few, is_judged=True):
        return LabelsFound(domain="d", answer=answer, too_few=too_few, high=4096, is_judged=is_judged)

    def labels(*searches):
        return judge_labels("few", searches, below=1000).verdict

    assert labels(found(300, 250)) == "seen"
    assert labels(found(0, None)) == "cannot be told"  # nothing was gained that labels could match
    assert labels(found(None, 4096)) == "not seen"
    assert labels(found(1200, 1100)) == "not seen"
    assert labels(found(1200, 900)) == "cannot be told"
    assert labels(found(300, 250), found(None, 4096)) == "cannot be told"
    assert labels(found(300, 250, is_judged=False)) == "cannot be told"
    assert labels() == "cannot be told"
    assert (
        judge_labels("few", [found(300, 250), found(None, 4096)], below=9).basis
        == "d: 300 rows; d: more than 4,096 rows"
    )


def test_a_single_seed_stands_against_all_of_the_other_side():
    assert paired_differences({0: 0.5, 1: 0.6}, {0: 0.1}) == pytest.approx([0.4, 0.5])
    assert paired_differences({0: 0.5}, {0: 0.1, 7: 0.2}) == pytest.approx([0.4, 0.3])
    assert paired_differences({0: 0.5, 1: 0.6}, {1: 0.1, 2: 0.2}) == pytest.approx([0.5])
    assert paired_differences({}, {0: 1.0}) == []


def test_every_format_says_the_same_and_escapes_what_comes_from_outside():
    table = example_table(p_values={("new", "a"): 0.01, ("new", MEAN): 0.02})
    asked = Question(text="new_1 > old", better="new", than="old")
    found = Comparison(p_value=0.01, error=0.001, seeds=())
    report = StudyReport(
        title="A <study> & more",
        about="",
        table=table,
        claims=tuple(judge_all(table, [asked], {asked.compared: found}, smallest=0.005)),
        smallest_effect=0.005,
        curves=(
            Curve(
                name="new",
                y_label="score",
                points=((0.0, 1.0), (1.0, 2.0)),
                spreads=(0.1, 9.0),
                band="one sd",
            ),
        ),
        notes=("a note",),
    )
    content = json.loads(study_json(report))
    assert {cell["column"] for cell in content["cells"]} == {"a", "b", "sts", "mean"}
    page = study_html(report)
    assert "A &lt;study&gt; &amp; more" in page
    assert "<study>" not in page
    assert "above the baseline on 3 of 3 seeds; corrected p = 0.0100" in page
    assert "<svg" in page
    assert page.count('class="bar"') == 2
    assert "score by step, bars: one sd" in page
    assert ">10<" in page  # the axis reaches to the end of the second bar
    assert "at least 0.5 points" in page
    text = study_markdown(report)
    assert "| new | **45.0 ± 5.0** ▲ | **60.0 ± 10.0** ▲ | **30.0 ± 0.0** | **90.0 ± 0.0** |" in text
    assert r"| new\_1 \> old | seen | +12.5 " in text
    assert "] | 0.0100 | 3 |" in text
    assert "| setting | mean | " in text
    latex = study_latex(report)
    assert r"\textbf{60.0 $\pm$ 10.0}$^\blacktriangle$" in latex
    assert latex.count(r"\\") == 4


def test_a_claim_against_all_others_is_as_strong_as_its_weakest_part():
    def claim(*verdicts):
        judged = [JudgedClaim(text="", verdict=found) for found in verdicts]
        return judge_together("best", ["a", "b", "c"][: len(judged)], judged)

    assert claim("seen", "seen").verdict == "seen"
    assert claim("seen", "cannot be told").verdict == "cannot be told"
    found = claim("seen", "not seen", "cannot be told")
    assert found.verdict == "not seen"
    assert found.basis == "seen against a; not seen against b; cannot be told against c"
    assert claim().verdict == "cannot be told"


def agreement(rho, num):
    """Of scores whose ranks have about this correlation."""
    rng = np.random.default_rng(3)
    first = rng.standard_normal(num)
    return rank_agreement("d", first, rho * first + math.sqrt(1 - rho**2) * rng.standard_normal(num))


def test_a_rank_correlation_has_an_interval_that_narrows_with_the_systems():
    few, many = agreement(0.5, 8), agreement(0.5, 800)
    assert many.rho == pytest.approx(0.48, abs=0.06)
    assert few.high - few.low > 5 * (many.high - many.low)
    assert many.low < many.rho < many.high
    exact = rank_agreement("d", [1, 2, 3, 4, 5], [1, 2, 3, 5, 4])
    assert exact.rho == pytest.approx(0.9)
    reach = 1.959964 * math.sqrt((1 + 0.81 / 2) / 2)
    assert exact.low == pytest.approx(math.tanh(math.atanh(0.9) - reach))
    assert rank_agreement("d", [1, 2, 3, 4], [1, 2, 3, 4]) is None
    assert rank_agreement("d", [1] * 9, range(9)) is None
    assert rank_agreement("d", range(9), range(9)).high == pytest.approx(1.0)


def test_that_one_task_does_not_predict_the_others_needs_the_whole_interval_below_the_bound():
    none, all_alike = agreement(0.0, 400), rank_agreement("d", range(40), range(40))
    weak = RankAgreement(domain="d", rho=0.3, low=-0.4, high=0.8, num_systems=9)
    assert judge_ranks("", [none], below=0.7).verdict == "seen"
    assert judge_ranks("", [weak], below=0.7).verdict == "cannot be told"
    assert judge_ranks("", [all_alike], below=0.7).verdict == "not seen"
    assert judge_ranks("", [none, all_alike], below=0.7).verdict == "cannot be told"
    assert judge_ranks("", [], below=0.7).verdict == "cannot be told"
    assert judge_ranks("", [all_alike], below=0.7).basis == "d: +1.00 [+1.00, +1.00] over 40 settings"
