"""Load on the HTTP service: queries/s and latency at rising concurrency, every answer checked.

    python benchmarks/bench_serve.py [--workspace work/quickstart] [--seconds 6]

Starts the service on a free port of this machine, asks it for a bounded time at every level, and compares
each answer with offline search in this process. Prints a Markdown table. The clients run on the same cores as
the service, so what it can do alone is more.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipelines.cluster import connected
from pipelines.config import RunConfig
from pipelines.search import Searcher
from pipelines.service.config import ServeConfig
from pipelines.service.deploy import running

LEVELS = (1, 2, 4, 8, 16, 32)
MAX_REQUESTS_PER_LEVEL = 20_000
K = 10
# Scores of one text differ in the last digits with the texts that are encoded beside it.
TOLERANCE = 1e-5


@dataclass
class Level:
    """What one level of concurrency gave."""

    concurrency: int
    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    without_retry_after: int = 0
    errors: int = 0
    wrong: int = 0

    def row(self, label: str) -> str:
        """One line of the table."""
        good = np.array(self.latencies_s) * 1000
        p50, p95, p99 = np.percentile(good, [50, 95, 99]) if len(good) else (np.nan,) * 3
        refused = f"{len(self.refused_s):,}"
        if self.refused_s:
            refused += f" (p50 {1000 * np.median(self.refused_s):.0f} ms)"
        return (
            f"| {label} | {self.concurrency} | {len(good) / self.seconds:,.0f} | {p50:.0f} | {p95:.0f} | "
            f"{p99:.0f} | {len(good):,} | {refused} | {self.errors} | {self.wrong} |"
        )


def main() -> None:
    """Runs all levels of every mode, then one above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workspace", default="work/quickstart")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--num-queries", type=int, default=200)
    parser.add_argument("--modes", nargs="+", default=["dense", "hybrid"])
    parser.add_argument("--max-waiting", type=int, default=48)
    parser.add_argument("--replicas", type=int, default=1)
    options = parser.parse_args()
    if not (Path(options.workspace) / "lookup" / "manifest.json").exists():
        print(f"no finished workspace at {options.workspace}: run `make quickstart` first")
        return
    searcher = Searcher.open(options.workspace)
    queries = sample_queries(searcher, options.num_queries)
    offline = {mode: offline_answers(searcher, queries, mode) for mode in options.modes}
    serve = ServeConfig(
        port=free_port(), max_waiting=options.max_waiting, poll_s=3600, num_replicas=options.replicas
    )
    config = RunConfig(workspace=options.workspace, serve=serve)
    print(f"{platform.machine()}, {os.cpu_count()} cores, {len(searcher.documents):,} documents, k = {K}, ")
    print(f"replicas: {serve.num_replicas}, at most {serve.max_waiting} requests inside, ", end="")
    print(f"{options.seconds:g} s per level\n")
    print("| mode | clients | queries/s | p50 ms | p95 ms | p99 ms | answers | 429 | errors | wrong |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with connected(config, replicas_cpus=options.replicas), running(config):
        for mode in options.modes:
            ask_all(serve.port, 4, 1.0, mode, queries, offline[mode])
            for concurrency in LEVELS:
                level = ask_all(serve.port, concurrency, options.seconds, mode, queries, offline[mode])
                print(level.row(mode), flush=True)
        mode = options.modes[0]
        level = ask_all(serve.port, 2 * serve.max_waiting, options.seconds, mode, queries, offline[mode])
        print(level.row(f"{mode}, above the limit"), flush=True)
        if level.without_retry_after:
            print(f"{level.without_retry_after} refusals came without Retry-After")


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def sample_queries(searcher: Searcher, count: int) -> list[str]:
    """The first words of documents spread over the collection."""
    hits = searcher.search_hits(["how to use this"], min(len(searcher.documents), 20 * count), mode="dense")
    chosen = hits.ids[0][:: max(1, hits.k // count)][:count]
    return [" ".join(str(row["text"]).split()[:8]) for row in searcher.documents.rows(chosen)]


def offline_answers(searcher: Searcher, queries: list[str], mode: str) -> list[list[tuple[str, float]]]:
    """Ids and scores of the best K for every query, searched one by one in this process."""
    found = [searcher.search([query], K, mode=mode)[0] for query in queries]  # type: ignore[arg-type]
    return [[(hit.doc_id, hit.score) for hit in hits] for hits in found]


def is_right(hits: list[dict[str, object]], wanted: list[tuple[str, float]]) -> bool:
    """Whether an answer is the offline one: scores everywhere, ids wherever no neighbour ties."""
    scores = np.array([float(str(hit["score"])) for hit in hits])
    right = np.array([score for _, score in wanted])
    if len(scores) != len(right) or not np.allclose(scores, right, atol=TOLERANCE, rtol=0):
        return False
    gaps = np.abs(np.diff(right, prepend=np.inf, append=-np.inf))
    alone = (gaps[:-1] > 2 * TOLERANCE) & (gaps[1:] > 2 * TOLERANCE)
    # The last place may tie with one that is not shown.
    alone[-1:] = False
    return all(hits[place]["doc_id"] == wanted[place][0] for place in np.flatnonzero(alone).tolist())


def ask_all(
    port: int,
    concurrency: int,
    seconds: float,
    mode: str,
    queries: list[str],
    offline: list[list[tuple[str, float]]],
) -> Level:
    """Clients that ask one after the other, each on its own connection, for some seconds."""
    level, lock = Level(concurrency), threading.Lock()
    end = time.perf_counter() + seconds
    budget = MAX_REQUESTS_PER_LEVEL // concurrency

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for turn in range(budget):
            if time.perf_counter() >= end:
                break
            which = (number * 7919 + turn) % len(queries)
            body = json.dumps({"query": queries[which], "k": K, "mode": mode})
            started = time.perf_counter()
            try:
                connection.request("POST", "/search", body, {"content-type": "application/json"})
                response = connection.getresponse()
                content = response.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                with lock:
                    level.errors += 1
                continue
            taken = time.perf_counter() - started
            with lock:
                if response.status == 200:
                    level.latencies_s.append(taken)
                    level.wrong += not is_right(json.loads(content)["results"][0]["hits"], offline[which])
                elif response.status == 429:
                    level.refused_s.append(taken)
                    level.without_retry_after += response.headers.get("retry-after") is None
                else:
                    level.errors += 1
            if response.status == 429:
                time.sleep(0.05)
        connection.close()

    started = time.perf_counter()
    threads = [threading.Thread(target=client, args=(number,)) for number in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    level.seconds = time.perf_counter() - started
    return level


if __name__ == "__main__":
    main()
