"""What the application refuses: bad requests with their reason, no key, no room, no time."""

import asyncio
import re
import threading

import pytest
from ray.exceptions import ActorDiedError
from service_builders import LocalBackend, make_service
from starlette.testclient import TestClient

from pipelines.service.api import create_app
from pipelines.service.config import ServeConfig
from pipelines.service.deploy import _Replicas
from pipelines.service.engine import Answer, Ask, Refusal

QUERY = "read a line of the file"


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
        ("/search", {"queries": ["a"] * 3, "k": 14}, 422, "3 queries with k 14: at most 40 hits at once"),
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
        pytest.param("/search", '{"queries": ' + 700 * "[" + 700 * "]" + "}", 422, "queries.0: ", id="deep"),
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


class LostReplicas:
    """A handle of Ray Serve whose replicas have died."""

    def __getattr__(self, _name):
        return self

    def remote(self, *_):
        async def lost():
            raise ActorDiedError

        return lost()


def test_without_an_engine_that_answers_every_route_is_503_and_says_when_to_come_back():
    with TestClient(create_app(_Replicas(LostReplicas()), ServeConfig())) as client:
        answers = [
            client.post("/search", json={"query": QUERY}),
            client.post("/embed", json={"texts": [QUERY]}),
            client.post("/rerank", json={"query": QUERY, "candidates": ["a"]}),
            client.get("/documents/doc/1"),
            client.get("/live"),
        ]
        for answer in answers:
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json() == {"error": "no engine can answer just now; try again"}
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200
