"""The application over an engine in this process: its answers are those of the searcher; metrics, OpenAPI."""

import dataclasses
import re

import numpy as np
import pytest
from search_builders import make_rows
from service_builders import LIMITS, make_service
from starlette.testclient import TestClient

from indexing.fusion import FusionConfig
from pipelines.errors import InputError
from pipelines.service.config import ServeConfig
from pipelines.service.deploy import engine_deployment
from pipelines.service.engine import Ask, Engine
from tsdae_core.encoder import SentenceEncoder

QUERY = "read a line of the file"


def hits_of(answer):
    return [(hit["doc_id"], hit["score"]) for hit in answer["hits"]]


@pytest.mark.parametrize("mode", ["dense", "bm25", "hybrid"])
def test_search_answers_what_the_searcher_answers(client, searcher, mode):
    body = {"queries": [QUERY, "blue paint"], "k": 7, "mode": mode, "filter": "size < 100"}
    answer = client.post("/search", json=body)
    assert answer.status_code == 200
    offline = searcher.search(body["queries"], 7, mode=mode, filter="size < 100")
    for result, query, hits in zip(answer.json()["results"], body["queries"], offline, strict=True):
        assert result["query"] == query
        assert hits_of(result) == [(hit.doc_id, pytest.approx(hit.score, abs=1e-6)) for hit in hits]
        assert result["hits"][0]["columns"] == dict(hits[0].columns)
    link = client.get("/search", params={"q": QUERY, "k": 7, "mode": mode, "filter": "size < 100"}).json()
    assert hits_of(link["results"][0]) == hits_of(answer.json()["results"][0])


def test_a_request_may_fuse_its_own_way(client, searcher):
    for fields, fusion in (
        ({"fusion": "weighted", "dense_weight": 0.9}, FusionConfig(kind="weighted", dense_weight=0.9)),
        ({"rrf_k": 1}, FusionConfig(rank_offset=1)),
    ):
        body = {"query": "read blue file", "k": 5, "mode": "hybrid", **fields}
        answer = client.post("/search", json=body).json()["results"][0]
        wanted = searcher.search(["read blue file"], 5, mode="hybrid", fusion=fusion)[0]
        assert hits_of(answer) == [(hit.doc_id, pytest.approx(hit.score, abs=1e-6)) for hit in wanted]
        params = {"q": body["query"], "k": 5, "mode": "hybrid", **fields}
        assert client.get("/search", params=params).json()["results"] == [answer]


def test_asks_of_one_batch_that_fuse_differently_get_each_their_own(engine):
    other = FusionConfig(kind="weighted", dense_weight=0.9)
    asks = [Ask((QUERY,), 5, mode="hybrid"), Ask((QUERY,), 5, mode="hybrid", fusion=other)]
    together = engine.search(asks)
    assert together == [engine.search([ask])[0] for ask in asks]
    assert together[0].content != together[1].content


def test_metrics_name_the_encoder_and_the_index_that_answered(engine, client, searcher):
    version = client.post("/search", json={"query": QUERY}).json()["version"]
    (line,) = [
        line for line in client.get("/metrics").text.splitlines() if line.startswith("tsdae_live_info{")
    ]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    assert labels == {
        "version": version,
        "encoder": searcher.info["encoder"],
        "model_version": "",
        "index_version": "",  # of a folder without versions
        "index": "IDMap,Flat",
    }


def test_replicas_ask_for_gpus_and_their_encoder_works_on_one(engine, monkeypatch):
    def reserved(**settings):
        return engine_deployment(ServeConfig(**settings)).ray_actor_options

    assert reserved()["num_gpus"] == 0
    assert reserved(gpus_per_replica=0.5)["num_gpus"] == 0.5
    config = dataclasses.replace(engine.live._config, serve=ServeConfig(gpus_per_replica=1))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match=r"gpus_per_replica is 1, and PyTorch sees no GPU"):
        Engine(config)
    devices, load = [], SentenceEncoder.load

    def on_cpu(path, *, device):
        devices.append(device)
        return load(path)

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(SentenceEncoder, "load", on_cpu)
    Engine(config)
    Engine(engine.live._config)
    assert devices == ["cuda", "cpu"]


def test_like_leaves_the_document_itself_out(client, searcher):
    answer = client.post("/search", json={"like": "doc/7", "k": 3}).json()["results"][0]
    assert [hit["doc_id"] for hit in answer["hits"]] == [hit.doc_id for hit in searcher.like("doc/7", 3)]


def test_embed_gives_the_encoders_vectors(client, searcher):
    answer = client.post("/embed", json={"texts": [QUERY, "blue"]}).json()
    assert answer["dim"] == 32
    np.testing.assert_allclose(answer["vectors"], searcher.encode([QUERY, "blue"]), atol=1e-6)


def test_rerank_orders_candidates_and_keeps_their_ids(client):
    body = {"query": "read file", "candidates": ["blue", {"id": "best", "text": "read file"}, "blue"]}
    results = client.post("/rerank", json=body).json()["results"]
    assert [(one["id"], one["index"]) for one in results] == [("best", 1), ("0", 0), ("2", 2)]
    assert results[0]["score"] == pytest.approx(1.0, abs=1e-6)


def test_documents_are_found_by_ids_that_hold_slashes(client):
    row = make_rows()[7]
    answer = client.get("/documents/doc/7").json()
    assert (answer["doc_id"], answer["title"], answer["text"]) == ("doc/7", row["title"], row["text"])
    assert answer["columns"]["topic"] == row["topic"]


def test_live_tells_encoder_index_columns_and_limits(client, searcher):
    about = client.get("/live").json()
    assert about["encoder"] == searcher.info["encoder"]
    assert about["documents"] == 120
    assert {"topic", "year", "size", "title"} <= set(about["columns"])
    assert about["limits"]["max_k"] == LIMITS["max_k"]
    assert about["misses_target"] is False
    assert about["recall_is_stale"] is False
    assert client.get("/readyz").json() == {"status": "ready", "version": about["version"]}
    assert client.get("/healthz").json() == {"status": "ok"}


def test_live_tells_of_an_index_that_was_kept_below_its_target(engine, client, monkeypatch):
    index = engine.live.current.searcher._index
    low = dataclasses.replace(index.metadata, recall_at_10=0.71, target_recall_at_10=0.95)
    assert low.misses_target
    monkeypatch.setitem(engine.live.current.searcher.info, "misses_target", low.misses_target)
    assert client.get("/live").json()["misses_target"] is True


def test_openapi_describes_every_route_and_its_refusals(client):
    whole = client.get("/openapi.json").json()
    assert set(whole["paths"]) == {
        "/search",
        "/embed",
        "/rerank",
        "/documents/{doc_id}",
        "/live",
        "/healthz",
        "/readyz",
    }
    assert {"401", "413", "422", "429", "504"} <= set(whole["paths"]["/search"]["post"]["responses"])
    for methods in whole["paths"].values():
        assert all(about["description"] for about in methods.values())


class ByLength:
    """A re-ranker that likes long texts."""

    def score(self, query, texts):
        return np.array([len(text) for text in texts], np.float32)


def test_a_search_that_asks_for_it_is_ranked_again_by_the_cross_encoder(engine, searcher, monkeypatch):
    monkeypatch.setattr(engine, "_cross_encoder", ByLength())
    with TestClient(make_service(engine)) as client:
        answer = client.post("/search", json={"query": QUERY, "k": 3, "rerank": True}).json()
        link = client.get("/search", params={"q": QUERY, "k": 3, "rerank": True}).json()
        body = {"query": "x", "candidates": ["a", "abc", "ab"], "model": "cross_encoder"}
        ranked = client.post("/rerank", json=body).json()["results"]
    assert link["results"] == answer["results"]
    depth = ServeConfig().rerank_depth
    longest = max(len(hit.text) for hit in searcher.search([QUERY], depth)[0])
    assert answer["results"][0]["hits"][0]["score"] == longest
    assert [one["index"] for one in ranked] == [1, 2, 0]
