"""Two replicas on Ray Serve, over HTTP: right answers under load, limits, a switch that drops nothing."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from search_builders import TOPICS, make_workspace

from pipelines.config import RunConfig
from pipelines.errors import InputError
from pipelines.search import Searcher
from pipelines.service.config import ServeConfig
from pipelines.service.deploy import running

MAX_WAITING = 32


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def post(address, path, body):
    """Status and content of a POST request."""
    request = urllib.request.Request(
        f"{address}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error) | {"retry_after": error.headers.get("retry-after")}


def versions_of_replicas(address, *, asks=40):
    """What each replica says is live: {replica: version}; a router that chooses by chance leaves out none."""
    found = {}
    for _ in range(asks):
        with urllib.request.urlopen(f"{address}/live", timeout=60) as answer:
            content = json.load(answer)
        found[content["replica"]] = content["version"]
    return found


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory):
    from tests.pipelines.conftest import run_shards_here

    folder = tmp_path_factory.mktemp("serve")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.lookup.run_shards", run_shards_here)
        for name, seed in (("a", 0), ("b", 1)):
            make_workspace(folder / name, seed=seed)
    (folder / "current").symlink_to(folder / "a")
    return folder


@pytest.fixture(scope="module")
def address(workspaces, ray_cluster):
    serve = ServeConfig(port=free_port(), poll_s=0.2, max_waiting=MAX_WAITING, num_replicas=2)
    config = RunConfig(workspace=str(workspaces / "current"), serve=serve)
    with running(config) as address:
        yield address


QUERIES = [
    f"{word} {other}" for topic in TOPICS.values() for word in topic.split() for other in ("file", "red")
]


def test_answers_under_concurrency_are_those_of_offline_search(address, workspaces):
    searcher = Searcher.open(str(workspaces / "a"))
    asked = [(query, mode) for query in QUERIES for mode in ("dense", "bm25", "hybrid")]

    def ask(question):
        query, mode = question
        return post(address, "/search", {"query": query, "mode": mode, "k": 5})

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, asked))
    for (query, mode), (status, content) in zip(asked, answers, strict=True):
        assert status == 200, content
        hits = content["results"][0]["hits"]
        offline = searcher.search([query], 5, mode=mode)[0]
        assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in offline], abs=1e-5)
        if mode == "bm25":
            assert [hit["doc_id"] for hit in hits] == [hit.doc_id for hit in offline]


def test_other_routes_answer_through_the_replica(address):
    assert post(address, "/embed", {"texts": ["red"]})[1]["dim"] == 32
    assert (
        post(address, "/rerank", {"query": "red", "candidates": ["blue", "red"]})[1]["results"][0]["id"]
        == "1"
    )
    assert post(address, "/search", {"query": "red", "filter": "x = 1"})[0] == 422
    assert post(address, "/search", {"like": "doc/x"})[0] == 404
    for path in ("/", "/docs", "/healthz", "/readyz", "/metrics", "/live", "/documents/doc/3"):
        with urllib.request.urlopen(f"{address}{path}", timeout=60) as answer:
            assert answer.status == 200


def test_the_limit_holds_for_all_replicas_together_and_the_surplus_is_told_when_to_come_back(address):
    body = {"queries": QUERIES, "k": 10, "mode": "hybrid"}
    inside, stop = [], threading.Event()

    def watch():
        while not stop.is_set():
            with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
                lines = answer.read().decode().splitlines()
            inside.extend(
                float(line.split()[-1]) for line in lines if line.startswith("tsdae_requests_in_work")
            )

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(3 * MAX_WAITING) as pool:
        answers = list(pool.map(lambda _: post(address, "/search", body), range(4 * MAX_WAITING)))
    stop.set()
    watcher.join()
    assert {status for status, _ in answers} == {200, 429}
    assert sum(status == 200 for status, _ in answers) >= MAX_WAITING
    assert all(content["retry_after"] == "1" for status, content in answers if status == 429)
    rankings = [
        [[hit["doc_id"] for hit in result["hits"]] for result in content["results"]]
        for status, content in answers
        if status == 200
    ]
    assert all(len(ranking) == len(body["queries"]) for ranking in rankings)
    assert 0 < max(inside) <= MAX_WAITING
    assert post(address, "/search", {"query": "red"})[0] == 200


def test_a_switch_reaches_both_replicas_drops_no_request_and_mixes_no_answer(address, workspaces):
    offline = {name: Searcher.open(str(workspaces / name)) for name in ("a", "b")}
    wanted = {
        name: [hit.score for hit in searcher.search([QUERIES[0]], 5)[0]] for name, searcher in offline.items()
    }
    before = versions_of_replicas(address)
    assert len(before) == 2
    assert len(set(before.values())) == 1
    stop, seen = threading.Event(), []

    def load():
        while not stop.is_set():
            seen.append(post(address, "/search", {"query": QUERIES[0], "k": 5}))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    (workspaces / "new").symlink_to(workspaces / "b")
    (workspaces / "new").replace(workspaces / "current")
    deadline = time.monotonic() + 60
    while len({content.get("version") for _, content in seen}) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    after = versions_of_replicas(address)
    while set(after.values()) & set(before.values()) and time.monotonic() < deadline:
        after = versions_of_replicas(address)
    stop.set()
    for thread in threads:
        thread.join()
    assert after.keys() == before.keys()
    assert len(set(after.values())) == 1
    assert {status for status, _ in seen} == {200}
    by_version = {}
    for _, content in seen:
        scores = [hit["score"] for hit in content["results"][0]["hits"]]
        by_version.setdefault(content["version"], []).append(scores)
    assert len(by_version) == 2
    for scores, name in zip(by_version.values(), ("a", "b"), strict=True):
        assert all(one == pytest.approx(wanted[name], abs=1e-5) for one in scores)


def test_an_unfinished_workspace_is_refused_before_anything_starts(tmp_path):
    with (
        pytest.raises(InputError, match="tsdae index"),
        running(RunConfig(workspace=str(tmp_path), serve=ServeConfig(port=free_port()))),
    ):
        pass


def test_an_interrupt_before_the_service_has_started_ends_it_with_one_line(workspaces, request):
    command = [sys.executable, "-m", "pipelines", "serve", "-w", str(workspaces / "a")]
    environment = {**os.environ, "PYTHONPATH": str(request.config.rootpath)}
    process = subprocess.Popen(
        [*command, f"serve.port={free_port()}"], stderr=subprocess.PIPE, text=True, env=environment
    )

    def titles():
        return [one.name() for one in psutil.Process(process.pid).children(recursive=True)]

    deadline = time.monotonic() + 120
    while not any("Serve" in title for title in titles()):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, written = process.communicate(timeout=120)
    assert process.returncode == 0, written
    assert written.splitlines() == ["serve: stopped before it had started"]
