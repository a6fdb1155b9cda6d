"""The start of a training: words added to the vocabulary, and what makes the stage run again."""

import numpy as np
import pytest
from pipeline_builders import quiet_reporter, write_rows

from pipelines.collection_config import CollectionConfig
from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.model_config import ModelConfig
from pipelines.prepare import prepare
from pipelines.start import resolve_start
from pipelines.storage import Location
from pipelines.token_shards import tokenize
from pipelines.train_config import TrainConfig
from tests.pipelines.shard_builders import run_shards_here
from tsdae_core.backbone import word_embeddings
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.pretrained import small_encoder_path

RARE = ["flurbostatin", "quoxiline"]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.prepare.run_shards", run_shards_here)
    rows = [(str(i), f"{RARE[i % 2]} helps patient number {i}, day-{i}") for i in range(60)]
    source = write_rows(tmp_path / "in.jsonl", rows)
    config = CollectionConfig(input=str(source), id_column="id", num_shards=1)
    return prepare("corpus", config, Location.parse(tmp_path / "w"), reporter=quiet_reporter()[0])


def run(tmp_path, corpus, **model):
    config = RunConfig(model=ModelConfig(**model), train=TrainConfig(validation_rows=5))
    reporter, written = quiet_reporter()
    workspace = Location.parse(tmp_path / "w")
    manifest = resolve_start(config, workspace, corpus, workspace / "corpus", reporter=reporter)
    return config, workspace, manifest, written.getvalue()


def test_words_of_a_file_and_mined_ones_become_tokens_with_the_mean_of_their_pieces(tmp_path, corpus):
    (tmp_path / "words.txt").write_text("day\nhyperquoxiline\n", encoding="utf-8")
    *_, workspace, manifest, told = run(
        tmp_path, corpus, add_tokens_file=str(tmp_path / "words.txt"), mine_tokens=2, mine_min_count=10
    )
    before, after = SentenceEncoder.load(small_encoder_path()), SentenceEncoder.load(f"{workspace}/start")
    assert manifest.counts["tokens_added"] == 3  # "day" was a token already
    assert "3 words added to the vocabulary" in told
    for word in (*RARE, "hyperquoxiline"):
        assert after.tokenizer.tokenize(word) == [word]
        pieces = before.tokenizer.convert_tokens_to_ids(before.tokenizer.tokenize(word))
        assert len(pieces) > 1
        row = word_embeddings(after.backbone).weight[after.tokenizer.convert_tokens_to_ids(word)]
        mean = word_embeddings(before.backbone).weight[pieces].mean(0)
        np.testing.assert_allclose(row.detach().numpy(), mean.detach().numpy(), atol=1e-6)
    assert after.lm_head is not None


def test_a_changed_file_redoes_the_start_and_an_equal_one_does_not(tmp_path, corpus):
    words = tmp_path / "words.txt"
    words.write_text("flurbostatin\n", encoding="utf-8")
    *_, first, told = run(tmp_path, corpus, add_tokens_file=str(words))
    assert "start: loading" in told
    words.write_text("flurbostatin\n", encoding="utf-8")
    *_, told = run(tmp_path, corpus, add_tokens_file=str(words))
    assert told == ""
    words.write_text("quoxiline\n", encoding="utf-8")
    *_, second, told = run(tmp_path, corpus, add_tokens_file=str(words))
    assert "start: loading" in told
    assert first.digest != second.digest


def test_a_missing_or_empty_file_of_words_is_an_error_of_the_user(tmp_path, corpus):
    with pytest.raises(InputError, match=r"no file .*words\.txt.*model\.add_tokens_file"):
        run(tmp_path, corpus, add_tokens_file=str(tmp_path / "words.txt"))
    (tmp_path / "words.txt").write_text("two words\n", encoding="utf-8")
    with pytest.raises(ValueError, match="one word a line"):
        run(tmp_path, corpus, add_tokens_file=str(tmp_path / "words.txt"))


def test_the_word_unit_redoes_the_tokens_and_not_the_start(tmp_path, corpus):
    starts = {}
    for unit in ("word", "whitespace", "piece"):
        config, workspace, start, told = run(tmp_path, corpus, word_unit=unit)
        assert (told == "") == (unit != "word")
        tokens = tokenize(
            config,
            workspace,
            corpus,
            start,
            workspace / "corpus",
            reporter=quiet_reporter()[0],
            runner=run_shards_here,
        )
        from pipelines.token_shards import read_validation

        starts[unit] = read_validation(workspace, tokens)[1].word_starts.mean()
    assert starts["whitespace"] < starts["word"] < starts["piece"] == 1.0
