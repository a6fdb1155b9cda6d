"""GPL: queries, negatives and margins are what they say, whoever makes them, and a recipe learns them."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import index_builders
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from labelled_builders import prepare_and_train, sentences, small_config, small_train
from pipeline_builders import quiet_reporter
from pseudo_label_builders import write_cross_encoder, write_generator
from sentence_transformers import CrossEncoder
from train_here import KilledError, without_ray
from typer.testing import CliRunner

from indexing.exact import normalize_rows
from pipelines import pseudo_labels, queries
from pipelines.cli.main import app
from pipelines.cluster import cpus_needed
from pipelines.collection import finished_manifest, read_shard
from pipelines.config_io import config_to_yaml
from pipelines.errors import InputError
from pipelines.labels import prepare_labels
from pipelines.labels_config import LabelsConfig
from pipelines.manifest import read_manifest
from pipelines.phase_config import PhaseConfig
from pipelines.phases import label_phase
from pipelines.prepare import prepare
from pipelines.pseudo_labels_config import PseudoLabelsConfig
from pipelines.queries import QueryActor, generate_queries
from pipelines.storage import Location
from pipelines.train_config import TrainConfig
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.optim import OptimConfig
from tsdae_core.scratch import train_tokenizer

DEPTH, NEGATIVES = 10, 4


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tokenizer = train_tokenizer(sentences(60), vocab_size=80)
    write_generator(folder / "t5", tokenizer)
    write_cross_encoder(folder / "cross", tokenizer)
    write_cross_encoder(folder / "classes", tokenizer, num_labels=2)
    return folder


@pytest.fixture
def here(monkeypatch):
    """No cluster, and tasks of a few queries, so that there are several."""
    index_builders.without_ray(monkeypatch)
    monkeypatch.setattr("pipelines.queries._QUERIES_PER_ITEM", 12)
    return without_ray(monkeypatch)


def settings_of(models, **changes):
    settings = {
        "generator": str(models / "t5"),
        "cross_encoder": str(models / "cross"),
        "num_queries": 120,
        "max_query_tokens": 6,
        "mining_depth": DEPTH,
        "negatives_per_query": NEGATIVES,
        "batch_size": 8,
    }
    return PseudoLabelsConfig(**(settings | changes))


def gpl_config(folder, models, *, steps=3, **changes):
    """TSDAE on 60 sentences, then margins of queries for them."""
    gpl = TrainConfig(
        objective="margin_mse",
        labels=LabelsConfig(generate=settings_of(models, **changes)),
        num_steps=3,
        batch_size=8,
        validation_rows=8,
        optim=OptimConfig(lr=1e-3),
    )
    phases = [
        PhaseConfig(name="tsdae", train=small_train("tsdae", num_steps=steps)),
        PhaseConfig(name="gpl", train=gpl),
    ]
    return with_different_vectors(small_config(folder, phases=phases))


def with_different_vectors(config):
    """From an encoder that tells texts apart before any training, so that a search has an order."""
    scratch = replace(config.model.scratch, embedding_init="svd")
    return replace(config, model=replace(config.model, pooling="mean", scratch=scratch))


def queries_of(config, models, folder, **changes):
    """The stage alone, on the prepared corpus of `config`."""
    home = Location.parse(config.workspace)
    settings = settings_of(models, **changes)
    reporter, _ = quiet_reporter()
    return generate_queries(config, settings, home / folder, home=home, reporter=reporter)


def rows_of(place):
    files = sorted(Path(place).glob("*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files]).to_pylist()


def prepared(folder, models):
    config = gpl_config(folder, models)
    prepare("corpus", config.corpus, Location.parse(config.workspace), reporter=quiet_reporter()[0])
    return config


def test_queries_depend_on_passages_and_seed_and_on_no_order_or_process(tmp_path, models, here):
    config = prepared(tmp_path, models)
    home = Location.parse(config.workspace)
    manifest = queries_of(config, models, "once")
    documents = finished_manifest(home / "corpus", command="prepare")
    items = queries._items(documents, settings_of(models), 3)
    assert len(items) > 10
    rows = rows_of(home.local_path / "once/queries")
    passages = [row["row_id"] for row in rows]
    # 3 each, the fewest, for a sample of 40 of 60 passages and at most one more in each of 8 shards.
    assert 40 <= len(set(passages)) <= 48
    assert manifest.counts["passages"] == len(set(passages))
    assert max(map(passages.count, passages)) == 3
    assert len({row["query"] for row in rows}) > 0.9 * len(rows)
    again = home / "again"
    work = QueryActor(home / "corpus", documents, again, settings_of(models), each=3, seed=0)()
    assert [work(name, items[name]) for name in reversed(items)] == list(reversed(manifest.shards))
    other = queries_of(replace(config, seed=1), models, "other")
    assert {shard.digest for shard in other.shards}.isdisjoint(shard.digest for shard in manifest.shards)
    for bad in ({"generator": str(models / "cross")}, {"generator": str(models / "none")}):
        with pytest.raises(InputError, match=r"cannot load labels\.generate\.generator"):
            queries_of(config, models, "bad", **bad)


def test_actors_of_ray_write_the_queries_of_this_process(tmp_path, models, ray_cluster, monkeypatch):
    with monkeypatch.context() as patch:
        index_builders.without_ray(patch)
        without_ray(patch)
        config = prepared(tmp_path, models)
        alone = queries_of(config, models, "here")
    by_two = queries_of(config, models, "by-two", num_actors=2)
    assert by_two.digest == alone.digest
    assert by_two.counts["queries"] > 100


def killed_once(monkeypatch, config):
    """Runs until the third shard of scores is to be written."""
    written = []

    def write(place, table):
        if len(written) == 2:
            raise KilledError
        written.append(place.name)
        return pseudo_labels_write(place, table)

    pseudo_labels_write = pseudo_labels.write_parquet
    with monkeypatch.context() as patch:
        patch.setattr(pseudo_labels, "write_parquet", write)
        with pytest.raises(KilledError):
            prepare_and_train(config)
    return written


def test_tsdae_then_gpl_learns_from_mined_and_scored_rows_and_goes_on_after_a_kill(
    tmp_path, models, here, monkeypatch
):
    digests = {}
    for name in ("undisturbed", "killed"):
        config = gpl_config(tmp_path / name, models)
        work = Path(config.workspace)
        if name == "killed":
            done = killed_once(monkeypatch, config)
            stamps = {file: (work / "pseudo_labels" / file).stat().st_mtime_ns for file in done}
        manifest, told = prepare_and_train(config)
        if name == "killed":
            assert "queries: up to date" in told
            assert {file: (work / "pseudo_labels" / file).stat().st_mtime_ns for file in done} == stamps
        places = [work / place for place in ("pseudo_labels", "labels", "encoder")]
        digests[name] = [json.loads((place / "manifest.json").read_text())["digest"] for place in places]
        assert not (work / "mining").exists()
    assert digests["killed"] == digests["undisturbed"]
    assert manifest.counts["steps"] == 3
    check_rows(work, models)
    before, after = (SentenceEncoder.load(work / place).fingerprint() for place in ("start", "encoder"))
    assert before == SentenceEncoder.load(work / "phases/tsdae/encoder").fingerprint() != after
    again, told = prepare_and_train(config)
    assert "pseudo-labels: up to date" in told
    assert again.fingerprint == manifest.fingerprint
    # Another encoder mines other negatives for the same queries.
    _, told = prepare_and_train(gpl_config(tmp_path / "killed", models, steps=4))
    assert "queries: up to date" in told
    assert "pseudo-labels: up to date" not in told
    changed = json.loads((work / "pseudo_labels/manifest.json").read_text())["digest"]
    assert changed != digests["killed"][0]


def check_rows(work, models):
    """Each row against the passages, exact search with the starting encoder, and the cross-encoder itself."""
    place = Location.parse(work / "corpus")
    corpus = pa.concat_tables(
        [read_shard(place, s.name, ["row_id", "text", "doc_id"]) for s in read_manifest(place).shards]
    ).to_pylist()
    text_of = {row["row_id"]: row["text"] for row in corpus}
    id_of = {row["text"]: row["doc_id"] for row in corpus}
    own = {}
    for row in rows_of(work / "queries"):
        own.setdefault(row["query"], set()).add(text_of[row["row_id"]])
    rows = rows_of(work / "pseudo_labels")
    assert len(rows) == NEGATIVES * len(rows_of(work / "queries"))
    encoder = SentenceEncoder.load(work / "start")
    texts = list(id_of)
    vectors = normalize_rows(encoder.encode(texts))
    asked = sorted(own)
    scores = normalize_rows(encoder.encode(asked)) @ vectors.T
    # The hits of a query with its own passage among them; equal scores may round apart.
    enough = -np.sort(-scores, axis=1)[:, DEPTH] - 1e-5
    assert (np.sort(scores, axis=1)[:, 0] < enough - 0.02).all()  # and not all of the documents
    best = {
        query: {texts[i] for i in np.flatnonzero(row >= low)}
        for query, row, low in zip(asked, scores, enough, strict=True)
    }
    for row in rows:
        assert row["positive"] in own[row["query"]]
        assert row["negative"] in best[row["query"]] - {row["positive"]}
        assert (row["positive_id"], row["negative_id"]) == (id_of[row["positive"]], id_of[row["negative"]])
    judge = CrossEncoder(str(models / "cross"), device="cpu", activation_fn=torch.nn.Identity())
    values = [judge.predict([(row["query"], row[side]) for row in rows]) for side in ("positive", "negative")]
    np.testing.assert_allclose([row["margin"] for row in rows], values[0] - values[1], atol=1e-4)
    assert np.abs(values[0] - values[1]).max() > 1.1  # no sigmoid between: margins are of logits
    labels = rows_of(work / "labels")
    taught = {(row["text_0"], row["text_1"], row["text_2"], row["label"]) for row in labels}
    assert taught == {(row["query"], row["positive"], row["negative"], row["margin"]) for row in rows}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generator": "classes"}, "is a bert; name a sequence-to-sequence model"),
        ({"generator": "none"}, r"cannot load labels\.generate\.generator"),
        ({"cross_encoder": "classes"}, "gives 2 values for a pair"),
        ({"cross_encoder": "none"}, r"cannot load labels\.generate\.cross_encoder"),
    ],
)
def test_models_that_cannot_be_used_are_told_before_the_first_phase(tmp_path, models, here, changes, message):
    given = {key: str(models / name) for key, name in changes.items()}
    config = gpl_config(tmp_path, models, **given)
    with pytest.raises(InputError, match=message):
        prepare_and_train(config)
    assert not (tmp_path / "work/phases/tsdae/encoder").exists()


def test_the_command_makes_the_rows_and_trains_nothing(tmp_path, models, here, monkeypatch):
    monkeypatch.setattr("pipelines.run.connected", lambda _: nullcontext())
    monkeypatch.setattr("pipelines.run.recover", lambda _: None)
    phase = gpl_config(tmp_path, models).phases[1]
    config = with_different_vectors(
        small_config(tmp_path, phase.train)
    )  # from its start: one training without phases
    prepare("corpus", config.corpus, Location.parse(config.workspace), reporter=quiet_reporter()[0])
    (tmp_path / "run.yaml").write_text(config_to_yaml(config))
    done = CliRunner().invoke(app, ["pseudo-label", str(tmp_path / "run.yaml")], catch_exceptions=False)
    assert done.exit_code == 0
    assert len(rows_of(tmp_path / "work/pseudo_labels")) > 100
    assert not (tmp_path / "work/encoder").exists()


def test_what_has_no_pseudo_labels_is_told(tmp_path, models, here):
    config = prepared(tmp_path, models)
    workspace, (reporter, _) = Location.parse(config.workspace), quiet_reporter()
    for name, message in ((None, "not trained yet"), ("tsdae", "phases that have: gpl"), ("x", "no phase")):
        with pytest.raises(InputError, match=message):
            label_phase(config, workspace, name, reporter=reporter)
    with pytest.raises(InputError, match="tsdae pseudo-label"):  # as a study would ask
        prepare_labels(config.phases[1].train, workspace, reporter=reporter)
    for bad in ({"negatives_per_query": 11}, {"top_p": 0.0}, {"num_queries": 0}, {"temperature": 0.0}):
        with pytest.raises(ValueError, match="must"):
            settings_of(models, **bad)
    assert [settings_of(models, num_queries=n).queries_each(100) for n in (10, 1_000, 10**6)] == [3, 10, 50]
    many = replace(config.phases[1].train, labels=LabelsConfig(generate=settings_of(models, num_actors=40)))
    assert cpus_needed(replace(config, phases=(), train=many)) == 40
