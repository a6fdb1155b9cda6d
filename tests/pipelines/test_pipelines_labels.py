"""Labelled rows: read from any format, set aside row by row, the same whatever the files, told when wrong."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from labelled_builders import (
    COLUMNS,
    labelled_rows,
    prepare_and_train,
    small_config,
    small_train,
    write_labels,
)
from pipeline_builders import quiet_reporter, write_rows
from train_here import without_ray

from pipelines.config_io import load_config
from pipelines.errors import InputError
from pipelines.labels import prepare_labels
from pipelines.labels_config import LabelsConfig
from pipelines.lanes import LanePlan, chunks
from pipelines.pseudo_labels_config import PseudoLabelsConfig
from pipelines.storage import Location
from pipelines.stream import _BatchMaker
from pipelines.token_shards import TokenRows
from pipelines.train_config import TrainConfig
from tsdae_core.objective import build_objective
from tsdae_core.scratch import train_tokenizer


@pytest.fixture(autouse=True)
def here(monkeypatch):
    return without_ray(monkeypatch)


def read(config, folder):
    reporter, written = quiet_reporter()
    manifest = prepare_labels(config, Location.parse(folder), reporter=reporter)
    tables = [pq.read_table(Path(folder) / f"labels/{shard.name}.parquet") for shard in manifest.shards]
    return manifest, pa.concat_tables(tables).to_pylist(), written.getvalue()


def dropped(folder):
    files = sorted((Path(folder) / "labels/dropped").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv", "tsv", "jsonl.gz"])
def test_every_format_gives_the_same_rows_in_the_same_order(tmp_path, ending):
    path = write_labels(tmp_path / f"rows.{ending}", "nli")
    manifest, rows, _ = read(small_train("nli", labels=path), tmp_path / "work")
    expected = {
        (a, b, float(("contradiction", "entailment", "neutral").index(c))) for a, b, c in labelled_rows("nli")
    }
    assert {(row["text_0"], row["text_1"], row["label"]) for row in rows} == expected
    assert manifest.counts["rows_kept"] == manifest.counts["rows_read"] == 60
    reference, *_ = read(
        small_train("nli", labels=write_labels(tmp_path / "b/rows.jsonl", "nli")), tmp_path / "other"
    )
    assert manifest.digest == reference.digest


def test_rows_do_not_depend_on_their_files_and_equal_ones_are_one(tmp_path):
    rows = labelled_rows("sts")
    for number, part in enumerate((rows[40:], rows[:45])):
        write_rows(tmp_path / f"many/{number}.csv", part, COLUMNS["sts"])
    whole, *_ = read(small_train("sts", labels=write_labels(tmp_path / "one.jsonl", "sts")), tmp_path / "a")
    parts, _, told = read(small_train("sts", labels=tmp_path / "many"), tmp_path / "b")
    assert [shard.digest for shard in parts.shards] == [shard.digest for shard in whole.shards]
    assert parts.counts["dropped_duplicate"] == 5
    assert "5 duplicate" in told
    assert {row["reason"] for row in dropped(tmp_path / "b")} == {"duplicate"}


def test_bad_rows_are_set_aside_with_file_row_column_and_reason(tmp_path):
    lines = [
        {"premise": "a b", "hypothesis": "c", "label": "Entailment"},
        {"premise": "", "hypothesis": "c", "label": 0},
        {"premise": "a", "hypothesis": None, "label": 1},
        {"premise": "a", "hypothesis": "c", "label": "-"},
        {"premise": "a", "hypothesis": "d", "label": 3},
        {"premise": "a", "hypothesis": "e"},
        {"premise": "a", "hypothesis": "c" * 60, "label": 2},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join([*map(json.dumps, lines), "{no json"]) + "\n")
    config = small_train("nli", labels=tmp_path / "rows.jsonl", section={"max_chars": 50})
    manifest, rows, told = read(config, tmp_path / "work")
    assert [(row["text_0"], row["label"]) for row in rows] == [("a b", 1.0)]
    found = {(row["file"], row["row"], row["column"], row["reason"]) for row in dropped(tmp_path / "work")}
    assert found == {
        ("rows.jsonl", 1, "premise", "empty"),
        ("rows.jsonl", 2, "hypothesis", "null"),
        ("rows.jsonl", 3, "label", "unknown_label"),
        ("rows.jsonl", 4, "label", "unknown_label"),
        ("rows.jsonl", 5, "label", "no_label"),
        ("rows.jsonl", 6, "hypothesis", "too_long"),
        ("rows.jsonl", 7, None, "not_json"),
    }
    assert manifest.counts["rows_read"] == 8
    assert "1 of 8 rows kept" in told


@pytest.mark.parametrize(
    ("objective", "settings", "row", "message"),
    [
        (
            "nli",
            {"label_names": ("no", "yes")},
            ("a", "b", "maybe"),
            "name the classes in train.labels.label_names",
        ),
        ("sts", {}, ("a", "b", "80"), r"must lie in \[-5, 5\]; set train.sts.max_score"),
        ("pairs", {}, ("a", "b", "2"), "1 for a pair of equal meaning"),
        ("margin_mse", {}, ("a", "b", "c", "inf"), "margins must be numbers in"),
        (
            "ranking",
            {"text_columns": ("anchor", "positiv")},
            ("a", "b"),
            r"no column 'positiv'.*Did you mean "
            r"'positive'.*train.labels.text_columns",
        ),
        ("sts", {"label_column": "similarity"}, ("a", "b", "1"), "no column 'similarity'"),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_wrong_labels_and_columns_are_told_with_what_to_do(
    tmp_path, objective, settings, row, message, ending
):
    path = write_rows(tmp_path / f"rows.{ending}", [row], COLUMNS[objective])
    with pytest.raises(InputError, match=message):
        read(small_train(objective, labels=path, section=settings), tmp_path / "work")
    assert not (tmp_path / "work/labels").exists()


def test_a_useb_folder_is_read_line_by_line_and_uneven_files_are_refused(tmp_path):
    for name, lines in (("train.org", ["a b", "", "c"]), ("train.para", ["d", "e", "f\r"])):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    section = {"layout": "useb"}
    manifest, rows, _ = read(small_train("ranking", labels=tmp_path, section=section), tmp_path / "work")
    assert {(row["text_0"], row["text_1"], row["label"]) for row in rows} == {
        ("a b", "d", None),
        ("c", "f", None),
    }
    assert manifest.counts["dropped_empty"] == 1
    with pytest.raises(InputError, match=r"no file 'train.s1'; it has: train.org, train.para"):
        read(small_train("pairs", labels=tmp_path, section=section), tmp_path / "work")
    (tmp_path / "train.para").write_text("d\n")
    with pytest.raises(InputError, match=r"ends after 1 lines and .*train.org' goes on"):
        read(small_train("ranking", labels=tmp_path, section=section), tmp_path / "work")


def test_settings_that_do_not_fit_are_refused(tmp_path):
    labels, generated = LabelsConfig(input="x"), PseudoLabelsConfig()
    with pytest.raises(ValueError, match="leave input, layout"):
        LabelsConfig(input="x", generate=generated)
    for settings, message in (
        ({"objective": "nli"}, "add a section labels"),
        ({"objective": "tsdae", "labels": labels}, "reads no labels"),
        ({"objective": "sts", "labels": LabelsConfig(text_columns=("a",))}, "two columns"),
        ({"objective": "ranking", "labels": LabelsConfig(label_column="x")}, "reads no label"),
        ({"objective": "nli", "labels": LabelsConfig(layout="useb")}, "useb is for"),
        ({"objective": "nli", "labels": labels, "strategy": "fsdp2"}, "use ddp for nli"),
        ({"objective": "margin_mse", "labels": LabelsConfig(text_columns=("a", "b"))}, "three columns"),
        ({"objective": "sts", "labels": LabelsConfig(generate=generated)}, "for objective margin_mse"),
    ):
        with pytest.raises(ValueError, match=message):
            TrainConfig(**settings)
    (tmp_path / "run.yaml").write_text("train: {objective: sts, labels: {inputs: x}}\n")
    with pytest.raises(InputError, match=r"train\.labels\.inputs.*train\.labels\.input"):
        load_config(tmp_path / "run.yaml")
    with pytest.raises(InputError, match=r"set train\.labels\.input"):
        prepare_labels(small_train("sts", labels=""), Location.parse(tmp_path), reporter=quiet_reporter()[0])


def test_batches_of_labelled_rows_are_the_same_for_any_number_of_workers(tmp_path):
    """Texts with their labels, over two epochs; what the streams of all workers give together."""
    path = write_labels(tmp_path / "rows.jsonl", "sts", 90)
    config = small_config(tmp_path, small_train("sts", labels=path))
    prepare_and_train(config)
    workspace = Location.parse(config.workspace)
    from pipelines.manifest import read_manifest

    rows = TokenRows.open(workspace, read_manifest(workspace / "tokens"))
    objective = build_objective("sts", tokenizer=train_tokenizer(["a"], vocab_size=20))
    plan = LanePlan(num_rows=rows.num_rows, batch_size=8, num_lanes=4, seed=5)
    work = chunks(plan, first_step=0, num_steps=2 * plan.steps_per_epoch)
    results = []
    for num_workers, max_tokens in ((1, 10_000), (2, 10_000), (4, 30)):
        found = []
        for rank in range(num_workers):
            maker = _BatchMaker(plan, rows, objective, range(rank, 4, num_workers), [work], max_tokens)
            for step in (step for chunk in work for step in maker.make_chunk(chunk)):
                for batch in step.micro_batches:
                    ids = np.split(batch["texts_ids"], np.cumsum(batch["texts_lengths"])[:-1])
                    count = len(batch["row_ids"])
                    found += [
                        (step.step, int(row), *(tuple(ids[i + k * count]) for k in range(2)), float(label))
                        for i, (row, label) in enumerate(zip(batch["row_ids"], batch["labels"], strict=True))
                    ]
        results.append(sorted(found))
    assert results[0] == results[1] == results[2]
    assert len(results[0]) == 2 * rows.num_rows
