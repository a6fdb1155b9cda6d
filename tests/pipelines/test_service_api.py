"""The application over an engine in this process: answers, refusals with reasons, limits, metrics, pages."""

import asyncio
import dataclasses
import json
import re
import shutil
import subprocess
import threading
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import pytest
from search_builders import make_rows
from service_builders import LocalBackend, make_engine, make_service
from starlette.testclient import TestClient

from indexing.fusion import FusionConfig
from pipelines.errors import InputError
from pipelines.service.api import create_app
from pipelines.service.config import ServeConfig
from pipelines.service.deploy import engine_deployment
from pipelines.service.engine import Answer, Ask, Engine, Refusal
from tsdae_core.encoder import SentenceEncoder

QUERY = "read a line of the file"
LIMITS = {"max_texts": 4, "max_text_chars": 50, "max_k": 20, "max_body_bytes": 2_000}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    from tests.pipelines.conftest import run_shards_here

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.lookup.run_shards", run_shards_here)
        return make_engine(tmp_path_factory.mktemp("service") / "work")


@pytest.fixture(scope="module")
def searcher(engine):
    return engine.live.current.searcher


@pytest.fixture(scope="module")
def client(engine):
    with TestClient(make_service(engine, **LIMITS), raise_server_exceptions=False) as client:
        yield client


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


@pytest.mark.parametrize(
    ("path", "body", "status", "part"),
    [
        ("/search", {}, 422, "exactly one of query, queries and like"),
        ("/search", {"query": "a", "like": "b"}, 422, "exactly one"),
        ("/search", {"query": "  "}, 422, "queries: the text is empty"),
        ("/search", {"queries": []}, 422, "at least one text"),
        ("/search", {"queries": ["a"] * 5}, 422, "5 texts, at most 4"),
        ("/search", {"query": "a" * 51}, 422, "51 characters, at most 50"),
        ("/search", {"query": "a", "k": 21}, 422, "at most 20"),
        ("/search", {"query": "a", "k": 0}, 422, "k: "),
        ("/search", {"query": "a", "mode": "magic"}, 422, "mode: "),
        ("/search", {"query": "a", "filter": "colour = red"}, 422, "no column 'colour'"),
        ("/search", {"query": "a", "filter": "size > "}, 422, "value is missing"),
        ("/search", {"query": "a", "kk": 3}, 422, "kk: "),
        ("/search", {"query": "a", "rrf_k": 3}, 422, "go with the mode hybrid"),
        ("/search", {"query": "a", "mode": "hybrid", "rrf_k": 0}, 422, "rrf_k: "),
        ("/search", {"query": "a", "mode": "hybrid", "dense_weight": 1}, 422, "dense_weight: "),
        ("/search", {"query": "a", "mode": "hybrid", "fusion": "sum"}, 422, "fusion: "),
        (
            "/search",
            {"query": "a", "mode": "hybrid", "fusion": "weighted", "rrf_k": 3},
            422,
            "goes with the fusion rrf",
        ),
        ("/search", {"query": "a", "rerank": True}, 422, "no cross-encoder"),
        ("/search", {"query": 3}, 422, "query: "),
        ("/search", {"like": "doc/x"}, 404, "no document 'doc/x'"),
        ("/search", "{", 422, "not JSON"),
        ("/search", "[1]", 422, ""),
        ("/search", r'{"query": "a \ud800"}', 422, "query holds half of a surrogate pair"),
        ("/search", r'{"queries": ["a", "\udc00"]}', 422, "queries[1] holds half"),
        ("/search", r'{"like": "\ud800"}', 422, "like holds half"),
        ("/search", r'{"query": "a", "filter": "title = \ud800"}', 422, "filter holds half"),
        ("/search", r'{"query": "a", "\ud800": 1}', 422, "a name in the body holds half"),
        ("/embed", r'{"texts": ["\ud800"]}', 422, "texts[0] holds half"),
        (
            "/rerank",
            r'{"query": "a", "candidates": [{"id": "\ud800", "text": "x"}]}',
            422,
            "[0].id holds half",
        ),
        ("/rerank", r'{"query": "\ud800", "candidates": ["x"]}', 422, "query holds half"),
        ("/search", {"like": "doc/7", "mode": "bm25"}, 422, "like ranks by the document's vector"),
        ("/search", {"like": "doc/7", "rerank": True}, 422, "like ranks by the document's vector"),
        ("/search", {"query": "a" * 3_000}, 413, "larger than 2000 bytes"),
        ("/embed", {"texts": ["a", ""]}, 422, "texts[1]: the text is empty"),
        ("/rerank", {"query": "a", "candidates": []}, 422, "candidates: give at least one"),
        ("/rerank", {"query": "a", "candidates": ["a"], "model": "cross_encoder"}, 422, "no cross-encoder"),
        ("/documents/nobody", None, 404, "no document 'nobody'"),
        ("/nowhere", None, 404, "Not Found"),
        ("/page/secret", None, 404, "no page file"),
    ],
)
def test_a_bad_request_gets_its_reason_and_no_trace(client, path, body, status, part):
    if body is None:
        answer = client.get(path)
    elif isinstance(body, str):
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
    else:
        answer = client.post(path, json=body)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert part in answer.json()["error"]
    assert "Traceback" not in answer.text


def test_live_tells_of_an_index_that_was_kept_below_its_target(engine, client, monkeypatch):
    index = engine.live.current.searcher._index
    low = dataclasses.replace(index.metadata, recall_at_10=0.71, target_recall_at_10=0.95)
    assert low.misses_target
    monkeypatch.setitem(engine.live.current.searcher.info, "misses_target", low.misses_target)
    assert client.get("/live").json()["misses_target"] is True


def test_a_body_without_a_length_is_cut_off_at_the_limit(client):
    def endless():
        for _ in range(100):
            yield b'"' + b"x" * 1_000

    answer = client.post("/search", content=endless(), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert "larger than 2000 bytes" in answer.json()["error"]


def test_one_bad_ask_of_a_batch_is_refused_alone(engine):
    asks = [
        Ask((QUERY,), 3),
        Ask((QUERY,), 3, filter="colour = red"),
        Ask((QUERY, " "), 3),
        Ask((), 3, like="doc/1"),
        Ask((), 3, like="doc/x"),
        Ask(("blue",), 3, mode="bm25"),
    ]
    answers = engine.search(asks)
    assert [type(answer) for answer in answers] == [Answer, Refusal, Refusal, Answer, Refusal, Answer]
    assert answers[0] == engine.search([asks[0]])[0]
    assert [answers[i].status for i in (1, 2, 4)] == [422, 422, 404]


def test_the_api_key_is_asked_for_by_routes_that_work_and_by_no_other(engine):
    with TestClient(make_service(engine, api_key="secret")) as client:
        for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}):
            answer = client.post("/search", json={"query": "a"}, headers=headers)
            assert answer.status_code == 401
            assert "API key is needed" in answer.json()["error"]
        for headers in ({"x-api-key": "secret"}, {"authorization": "bearer secret"}):
            assert client.post("/search", json={"query": "a"}, headers=headers).status_code == 200
        for path in ("/", "/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 200


class SlowBackend(LocalBackend):
    """Answers when told to."""

    def __init__(self, engine):
        super().__init__(engine)
        self.gate = threading.Event()

    async def search(self, ask):
        while not self.gate.is_set():
            await asyncio.sleep(0.005)
        return await super().search(ask)


def test_above_the_waiting_room_requests_are_turned_away_at_once_and_those_inside_are_answered(engine):
    backend = SlowBackend(engine)
    app = create_app(backend, ServeConfig(max_waiting=3))
    statuses = []
    with TestClient(app) as client:

        def ask():
            answer = client.post("/search", json={"query": QUERY})
            statuses.append((answer.status_code, answer.headers.get("retry-after")))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(400):
            if len(statuses) == 5:
                break
            threading.Event().wait(0.01)
        assert statuses == [(429, "1")] * 5
        backend.gate.set()
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [(200, None)] * 3 + [(429, "1")] * 5
        text = client.get("/metrics").text
    assert "tsdae_requests_turned_away_total 5.0" in text
    assert 'tsdae_requests_total{route="/search",status="200"} 3.0' in text
    assert "tsdae_requests_in_work 0.0" in text
    assert 'tsdae_request_seconds_count{route="/search"} 8.0' in text


def test_an_answer_that_takes_too_long_is_504_and_an_unready_engine_503(engine):
    backend = SlowBackend(engine)
    with TestClient(create_app(backend, ServeConfig(timeout_s=0.05))) as client:
        answer = client.post("/search", json={"query": QUERY})
        assert (answer.status_code, answer.json()["error"]) == (504, "no answer within 0.05 s")

    class Broken(LocalBackend):
        async def describe(self):
            raise RuntimeError("secret path")

    with TestClient(create_app(Broken(engine), ServeConfig()), raise_server_exceptions=False) as client:
        assert client.get("/readyz").status_code == 503
        answer = client.get("/live")
        assert answer.status_code == 500
        assert re.fullmatch(
            r"internal error; the server's log has it as [0-9a-f]{12}", answer.json()["error"]
        )


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


class Page(HTMLParser):
    """What a page refers to and labels."""

    def __init__(self):
        super().__init__()
        self.links, self.fields, self.labels, self.ids, self.live = [], [], set(), set(), set()
        self._in_label = 0

    def handle_starttag(self, tag, pairs):
        attributes = dict(pairs)
        self.links += [attributes[name] for name in ("src", "href") if name in attributes]
        self.ids.add(attributes.get("id"))
        if tag == "label":
            self._in_label += 1
            self.labels.add(attributes.get("for"))
        if tag in ("input", "select", "textarea"):
            self.fields.append((attributes.get("id"), bool(self._in_label)))
        if "aria-live" in attributes:
            self.live.add(attributes.get("id"))

    def handle_endtag(self, tag):
        self._in_label -= tag == "label"


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_needs_nothing_from_elsewhere_and_labels_every_field(client, path):
    answer = client.get(path)
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    page = Page()
    page.feed(answer.text)
    for link in page.links:
        if not link.startswith("#"):
            assert "//" not in link
            assert client.get(f"/{link}".replace("/.", "/")).status_code == 200, link
    for name, is_inside_label in page.fields:
        assert is_inside_label or name in page.labels, name
    assert page.live
    assert "<script>" not in answer.text
    assert "style=" not in answer.text


def test_no_file_of_the_page_names_another_host(client):
    for file in files("pipelines.service").joinpath("page").iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text
        assert "https:" not in text
        assert "innerHTML" not in text


def test_the_pages_script_uses_ids_that_the_page_has(client):
    page = Page()
    page.feed(client.get("/").text)
    script = client.get("/page/page.js").text
    used = set(re.findall(r'getElementById\("([\w-]+)"\)', script))
    assert used
    assert used <= page.ids


MARKED = [
    ("How do I read the files?", "Read a file. Reading <b>Files</b>", ["Read", "file", "Files"]),
    ("the", "the end", ["the"]),
    ("Zürich", "in zürich, Zürichs", ["zürich", "Zürichs"]),
    ("classes", "A class of clas", ["class"]),
    ("(a+b)*", "a+b", ["a", "b"]),
]


def test_the_page_marks_the_words_of_the_query_and_keeps_every_character(client):
    """Runs the page's own script where there is node; everywhere it must be the one that is served."""
    script = client.get("/page/terms.js").text
    assert "module.exports" in script
    code = script + (
        "\nconst given = JSON.parse(require('fs').readFileSync(0));"
        "console.log(JSON.stringify(given.map(([q, t]) => markedParts(t, queryWords(q)))));"
    )
    node = shutil.which("node")
    if node is None:
        return
    given = json.dumps([[query, text] for query, text, _ in MARKED])
    done = subprocess.run([node, "-e", code], input=given, capture_output=True, text=True, check=True)
    for parts, (_, text, marked) in zip(json.loads(done.stdout), MARKED, strict=True):
        assert "".join(part for part, _ in parts) == text
        assert [part for part, is_marked in parts if is_marked] == marked


class ByLength:
    """A re-ranker that likes long texts."""

    def score(self, query, texts):
        return np.array([len(text) for text in texts], np.float32)


def test_a_search_that_asks_for_it_is_ranked_again_by_the_cross_encoder(engine, searcher, monkeypatch):
    monkeypatch.setattr(engine, "_cross_encoder", ByLength())
    with TestClient(make_service(engine)) as client:
        answer = client.post("/search", json={"query": QUERY, "k": 3, "rerank": True}).json()
        body = {"query": "x", "candidates": ["a", "abc", "ab"], "model": "cross_encoder"}
        ranked = client.post("/rerank", json=body).json()["results"]
    depth = ServeConfig().rerank_depth
    longest = max(len(hit.text) for hit in searcher.search([QUERY], depth)[0])
    assert answer["results"][0]["hits"][0]["score"] == longest
    assert [one["index"] for one in ranked] == [1, 2, 0]
