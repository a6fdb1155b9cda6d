"""The report: numbers, escaping, self-containment, the same text every time."""

import dataclasses
import json
import re
from html.parser import HTMLParser

import numpy as np
import pyarrow.fs
import pytest

from indexing.evaluation.pair_rows import PairRow
from indexing.evaluation.report import (
    Curve,
    ExampleHit,
    FactBlock,
    Mover,
    QueryExample,
    ReportInput,
    SystemRanking,
    render_html,
    render_latex,
    render_markdown,
    report_json,
)
from indexing.evaluation.report_plots import curve_plot
from indexing.evaluation.rows import PerQueryRow, QueryScore, label_rows, read_rows, write_rows
from indexing.evaluation.summary import (
    largest_changes,
    mean_of_main_scores,
    mean_over_tasks,
    summarise,
)

HOSTILE = "<script>alert('x')</script> & \"q\" | `c`"


def rows_for(task="toy", num_queries=40):
    rng = np.random.default_rng(0)
    before = rng.random(num_queries) * 0.5
    columns = {"before": before, "after": before + 0.2, HOSTILE: before[::-1]}
    return tuple(
        PerQueryRow(system, task, f"q{n}", measure, float(value))
        for system, values in columns.items()
        for measure in ("ndcg_at_10", "map")
        for n, value in enumerate(values)
    )


def report(**changes):
    hits = (ExampleHit(doc_id="d1", text=HOSTILE, score=0.5, is_relevant=True),)
    ranking = SystemRanking(system=HOSTILE, best_relevant_rank=1, hits=hits)
    empty = SystemRanking(system="after", best_relevant_rank=None, hits=())
    full = ReportInput(
        title=HOSTILE,
        summary=HOSTILE,
        rows=rows_for() + rows_for("other"),
        baseline="before",
        notes=(HOSTILE,),
        examples=(
            QueryExample(
                task="toy",
                query_id="q1",
                query=HOSTILE,
                label=HOSTILE,
                relevant_texts=(HOSTILE,),
                rankings=(ranking, empty),
            ),
        ),
        curves=(
            Curve(name=HOSTILE, y_label="loss", points=((0, 3.0), (10, 2.0))),
            Curve(name="one point", y_label="loss", points=((5, 2.5),)),
            Curve(name="none", y_label="empty", points=()),
        ),
        facts=(FactBlock(title=HOSTILE, facts={"rows": 123456, "dropped": {HOSTILE: HOSTILE}}),),
    )
    return dataclasses.replace(full, **changes)


class Checker(HTMLParser):
    """Collects tags and fails on crossing ones."""

    VOID = ("meta", "line", "path")

    def __init__(self):
        super().__init__()
        self.stack, self.tags, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def test_the_page_is_well_formed_escaped_and_needs_nothing_else():
    page = render_html(report())
    checker = Checker()
    checker.feed(page)
    assert checker.stack == []
    assert "script" not in checker.tags
    assert not {"link", "img", "iframe", "object"} & set(checker.tags)
    assert not [name for name, _ in checker.attributes if name in ("src", "href") or name.startswith("on")]
    assert "http" not in page
    assert "url(" not in page
    assert "<script>" not in page


def test_equal_input_gives_equal_text():
    for render in (render_html, render_markdown, report_json):
        assert render(report()) == render(report())


def test_json_holds_means_intervals_and_comparisons():
    content = json.loads(report_json(report()))
    scores = {(s["system"], s["measure"]): s for s in content["tasks"][0]["scores"]}
    after = scores["after", "map"]
    low, high = after["interval_95"]
    assert low < after["mean"] < high
    assert after["is_best"]
    assert after["against_baseline"]["difference"] == pytest.approx(0.2)
    assert after["against_baseline"]["num_wins"] == 40
    assert after["against_baseline"]["adjusted_p_value"] == pytest.approx(4e-4, rel=0.01)
    assert scores["before", "map"]["against_baseline"] is None


def test_markdown_marks_the_best_and_the_significant():
    text = render_markdown(report())
    line = next(line for line in text.splitlines() if line.startswith("| after |"))
    assert re.fullmatch(r"\| after \| (\*\*\d+\.\d\*\* ▲ \[\d+\.\d, \d+\.\d\] \| ?){2}", line)
    assert "<script>" not in text


def test_one_system_and_no_extras_still_make_a_report():
    rows = tuple(row for row in rows_for() if row.system == "before")
    plain = ReportInput(title="t", rows=rows, baseline="before")
    assert "baseline" in render_html(plain)
    assert render_markdown(plain).startswith("# t\n")
    assert json.loads(report_json(plain))["tasks"][0]["num_queries"] == 40


def test_facts_that_json_cannot_say_are_refused():
    block = FactBlock(title="x", facts={"a": object()})
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        report_json(report(facts=(block,)))


def test_curves_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="finite"):
        curve_plot([Curve(name="c", y_label="loss", points=((0, float("nan")),))])


@pytest.mark.parametrize(
    "points", [((0, 0.0), (1, 0.0)), ((5, 2.0),), ((0, 1e-6), (10, 3e-6)), ((0, -5e8), (1e6, 3e9))]
)
def test_any_range_has_few_ticks_and_stays_inside_the_plot(points):
    html = curve_plot([Curve(name="c", y_label="loss", points=points)])
    places = [float(value) for value in re.findall(r"(?:top|left):(-?[\d.]+)%", html)]
    assert 2 <= len(places) <= 16
    assert all(-0.01 <= place <= 100.01 for place in places)


def test_systems_scored_on_different_queries_are_refused():
    rows = [row for row in rows_for() if (row.system, row.query_id) != ("after", "q3")]
    with pytest.raises(ValueError, match="after has no ndcg_at_10 for the same queries as before: q3"):
        summarise(rows, baseline="before")


def test_a_missing_baseline_a_repeated_row_and_no_rows_are_refused():
    with pytest.raises(ValueError, match="the baseline 'x' has no rows"):
        summarise(rows_for(), baseline="x")
    with pytest.raises(ValueError, match="two ndcg_at_10 rows of before for query 'q0'"):
        summarise([*rows_for(), rows_for()[0]], baseline="before")
    with pytest.raises(ValueError, match="no rows"):
        summarise([], baseline="before")


def test_the_mean_over_tasks_weighs_tasks_equally():
    rows = [PerQueryRow("s", "a", f"q{n}", "map", 1.0) for n in range(3)]
    rows.append(PerQueryRow("s", "b", "q", "map", 0.0))
    assert mean_over_tasks(summarise(rows, baseline="s")) == {("s", "map"): 0.5}


def test_the_largest_changes_come_first():
    values = {"q1": (0.5, 0.6), "q2": (0.0, 1.0), "q3": (0.9, 0.1), "q4": (0.3, 0.3)}
    rows = [
        PerQueryRow(system, "t", query, "map", pair[side])
        for side, system in enumerate(("old", "new"))
        for query, pair in values.items()
    ]
    gains, losses = largest_changes(rows, measure="map", baseline="old", system="new")
    assert [change.query_id for change in gains] == ["q2", "q1"]
    assert [change.query_id for change in losses] == ["q3"]


def grouped_rows():
    """Two forums, one of a single query: s1 is 1.0 in the small one, 0.0 in the large one."""
    rows = []
    for system, small in (("s0", 0.0), ("s1", 1.0)):
        rows += [PerQueryRow(system, "t", f"q{n}", "map", 0.0, "large") for n in range(9)]
        rows.append(PerQueryRow(system, "t", "q0", "map", small, "small"))
    return rows


def test_groups_weigh_the_same_and_few_get_columns_of_their_own():
    (summary,) = summarise(grouped_rows(), baseline="s0")
    values = {measure: summary.cells["s1", measure].interval.mean for measure in summary.measures}
    assert values == {"map": 0.5, "map.large": 0.0, "map.small": 1.0}
    assert summary.num_queries == 10
    comparison = summary.cells["s1", "map"].comparison
    assert (comparison.difference, comparison.num_wins, comparison.num_ties) == (0.5, 1, 9)
    assert "MAP, small" in render_html(ReportInput(title="t", rows=tuple(grouped_rows()), baseline="s0"))


def test_the_mean_of_the_main_scores_takes_each_tasks_first_measure():
    rows = [PerQueryRow("s", "a", "q", "map", 1.0), PerQueryRow("s", "a", "q", "mrr", 0.1)]
    pairs = [PairRow("s", "b", "", f"p{n}", float(n), -1, float(n)) for n in range(4)]
    summaries = summarise(rows, pair_rows=pairs, baseline="s")
    assert [summary.main_measure for summary in summaries] == ["map", "spearman"]
    assert mean_of_main_scores(summaries) == {"s": 1.0}


def test_winners_and_the_map_are_on_the_page_and_hostile_texts_are_escaped():
    mover = Mover(task="toy", text=HOSTILE, target=HOSTILE, before="place 9", after="place 1", change=0.5)
    full = report(movers=(mover,), moved=("before", HOSTILE), map_svg="<svg></svg>")
    page = render_html(full)
    assert "<script>" not in page
    assert "place 9 → <b>place 1</b>" in page
    assert "Map of the corpus" in page
    assert "▲ toy: place 9 → place 1" in render_markdown(full)
    assert json.loads(report_json(full))["movers"][0]["after"] == "place 1"


def test_the_latex_table_marks_the_best_and_escapes_what_latex_takes_for_itself():
    rows = [
        dataclasses.replace(row, system="100 %_x" if row.system == "after" else row.system)
        for row in rows_for()
    ]
    text = render_latex(report(rows=tuple(rows)))
    (line,) = [line for line in text.splitlines() if line.startswith("100")]
    assert re.fullmatch(r"100 \\%\\_x & \\textbf\{\d+\.\d\}\$\^\\dagger\$ \\\\", line), line
    assert r"</script> \& " in text
    assert text.count("&") == 5


def test_rows_come_back_from_parquet_with_stable_bytes(tmp_path):
    filesystem = pyarrow.fs.LocalFileSystem()
    rows = list(rows_for())
    for name in ("a", "b"):
        write_rows(filesystem, str(tmp_path / name), rows)
    assert read_rows(filesystem, str(tmp_path / "a")) == rows
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    (tmp_path / "c").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="not a readable Parquet file"):
        read_rows(filesystem, str(tmp_path / "c"))


def test_rows_get_their_labels():
    assert label_rows([QueryScore("q", "map", 0.5)], system="s", task="t") == [
        PerQueryRow("s", "t", "q", "map", 0.5)
    ]
