"""The hold-out split: which texts are held out is said by their hash, not by what else is there."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from labelled_builders import prepare_and_train, sentences, small_config, small_train
from train_here import without_ray

from pipelines.collection import read_rows
from pipelines.storage import Location


def split_of(folder, texts, *, seed=0, num_shards=3):
    """Held-out and trained texts after a training of one step that is to hold out a fifth."""
    folder.mkdir()
    (folder / "corpus.txt").write_text("".join(f"{text}\n" for text in texts))
    config = small_config(folder, small_train("tsdae", num_steps=1, validation_rows=len(texts) // 5))
    config = replace(config, seed=seed, corpus=replace(config.corpus, num_shards=num_shards))
    prepare_and_train(config)
    workspace = Location.parse(config.workspace)

    def texts_below(name):
        parts = sorted((Path(config.workspace) / name).glob("part-*.parquet"))
        rows = [pq.read_table(part).column("row_id").to_numpy() for part in parts]
        return {row["text"] for ids in rows for row in read_rows(workspace / "corpus", ids, ["text"])}

    return texts_below("tokens/validation"), texts_below("tokens")


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch):
    without_ray(monkeypatch)


def test_a_text_stays_on_its_side_whatever_the_order_the_shards_and_the_other_texts(tmp_path):
    texts = sentences(100)
    held_out, trained = split_of(tmp_path / "some", texts)
    assert held_out | trained == set(texts)
    assert not held_out & trained
    assert 10 <= len(held_out) <= 30
    more = [*sentences(50, seed=7), *reversed(texts)]
    others, rest = split_of(tmp_path / "more", more, num_shards=2)
    assert others & set(texts) == held_out
    assert rest & set(texts) == trained
    assert len(others) > len(held_out)


def test_another_seed_holds_out_other_texts(tmp_path):
    texts = sentences(100)
    assert split_of(tmp_path / "a", texts)[0] != split_of(tmp_path / "b", texts, seed=1)[0]
