"""Nearest-neighbour indexes side by side: this project's choice, FAISS's types, and other libraries.

    python benchmarks/bench_index.py VECTORS.npy [--rows 100000] [--densify FACTOR] [--out FOLDER]

VECTORS.npy is float32[n, d], for instance from benchmarks/sentence_vectors.py; its last rows are the queries,
so no query is in the index. The peers are not dependencies of the project; those that are absent are left out
with a line. To have them, in an environment of their own (autofaiss asks for an old numpy):

    python -m venv peers && peers/bin/pip install faiss-cpu hnswlib usearch autofaiss 'pyarrow<19'
    PYTHONPATH=. peers/bin/python benchmarks/bench_index.py VECTORS.npy

Each system is built by one thread in a process of its own; what is finished is kept below --out, so a run
that was interrupted goes on where it was. Then all are opened together and timed in turns, a short slice of
each in every round, in another order each time, so that other work on the machine disturbs all alike; the
medians over the rounds count: by CPU time and by the clock with one thread, by the clock with two (hnswlib's
and usearch's own threads, Python threads for FAISS). --densify makes more rows from fewer by mixing each with
a near one: easier than real rows, and named in the output.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from index_systems import TARGETS, K, Search, System, Vectors, blocks_of, size_of, systems_for

from indexing.build import add_vectors, train_index
from indexing.exact import exact_search, normalize_rows
from indexing.hits import NO_HIT, Hits, recall_at
from indexing.index_config import IndexConfig
from indexing.plan import plan_index

# A setting is looked at for so long in a round, and settings below this recall not at all.
SLICE_S = 0.5
LEAST_RECALL = 0.85
SWEEP_QUERIES = 300
ROUNDS = "rounds"
MAX_TIMED_SETTINGS = 8


def main() -> None:
    """Prepares the data, builds what is missing, times everything in turns, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("vectors", type=Path)
    parser.add_argument("--rows", type=int, default=0, help="0 takes all but the queries")
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--densify", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None, help="where data, indexes and results are kept")
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of systems")
    parser.add_argument("--build", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    folder: Path = options.out or Path(f"bench-index-{options.rows}x{options.densify}")
    rows, queries, truth = data_in(folder, options)
    systems = [
        system
        for system in systems_for(len(rows), rows.shape[1])
        if not options.only or any(part in system.name for part in options.only)
    ]
    if options.build is not None:
        build(next(system for system in systems if system.name == options.build), rows, folder)
        return
    print(f"{len(rows):,} rows of {rows.shape[1]}, {len(queries):,} queries, densified {options.densify}x")
    present = [system for system in systems if is_built(system, folder)]
    opened: dict[str, Search] = {}
    for system in present:
        opened[system.name], settings = system.open(place_of(system, folder), rows)
        sweep(system, opened[system.name], settings, queries, truth, folder)
    time_in_rounds(opened, queries, truth, folder, num_rounds=options.rounds)
    print_curves(present, folder)
    print_winners(present, folder)


def data_in(folder: Path, options: argparse.Namespace) -> tuple[Vectors, Vectors, Hits]:
    """Rows (mapped), queries and the exact hits; made once and kept."""
    asked = {"vectors": str(options.vectors), "rows": options.rows, "queries": options.queries}
    asked["densify"] = options.densify
    record = folder / "data.json"
    if not record.exists():
        folder.mkdir(parents=True, exist_ok=True)
        stored = np.load(options.vectors, mmap_mode="r")
        num_rows = min(options.rows or len(stored), len(stored) - options.queries)
        queries = normalize_rows(np.array(stored[-options.queries :]))
        rows = densified(normalize_rows(np.array(stored[:num_rows])), options.densify)
        truth = exact_search(queries, blocks_of(rows), 2 * K)
        np.save(folder / "rows.npy", rows)
        np.savez(folder / "queries.npz", queries=queries, ids=truth.ids, scores=truth.scores)
        record.write_text(json.dumps(asked))
    if json.loads(record.read_text()) != asked:
        sys.exit(f"{folder} holds another run, {record.read_text()}: give another --out or remove it")
    kept = np.load(folder / "queries.npz")
    return np.load(folder / "rows.npy", mmap_mode="r"), kept["queries"], Hits(kept["ids"], kept["scores"])


def place_of(system: System, folder: Path) -> Path:
    """The index file of a system."""
    name = "".join(letter if letter.isalnum() else "_" for letter in system.name)
    return folder / "indexes" / f"{name}.index"


def result_of(system: System | str, folder: Path) -> dict[str, Any]:
    """What is known of a system so far."""
    place = _result_place(system, folder)
    found: dict[str, Any] = json.loads(place.read_text()) if place.exists() else {}
    return found


def keep(system: System | str, folder: Path, result: dict[str, Any]) -> None:
    """Stores it, in place of what was known."""
    place = _result_place(system, folder)
    place.parent.mkdir(exist_ok=True)
    temporary = place.with_suffix(".part")
    temporary.write_text(json.dumps(result, indent=1))
    temporary.replace(place)


def _result_place(system: System | str, folder: Path) -> Path:
    name = system if isinstance(system, str) else system.name
    return folder / "results" / ("".join(letter if letter.isalnum() else "_" for letter in name) + ".json")


def is_built(system: System, folder: Path) -> bool:
    """Builds it in a process of its own unless that was done; tells and returns False if it cannot be had."""
    if "build_cpu_s" in result_of(system, folder):
        return True
    command = [sys.executable, *sys.argv, "--build", system.name]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        print(f"{system.name} is left out: {reason}", flush=True)
        return False
    print(f"{system.name}: built in {result_of(system, folder)['build_cpu_s']} CPU s", flush=True)
    return True


def build(system: System, rows: Vectors, folder: Path) -> None:
    """Writes the index and what it cost, without the reading of the rows."""
    path = place_of(system, folder)
    path.parent.mkdir(exist_ok=True)
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    held = np.array(rows)
    cpu_s, clock_s = time.process_time(), time.monotonic()
    system.build(held, path)
    result = {"build_cpu_s": round(time.process_time() - cpu_s, 1)}
    result["build_s"] = round(time.monotonic() - clock_s, 1)
    keep(system, folder, result | {"size_bytes": size_of(path)})


def sweep(
    system: System, search: Search, settings: list[str], queries: Vectors, truth: Hits, folder: Path
) -> None:
    """Recall at every setting, and which are worth timing: none that is slower and worse than another.

    A setting of many that costs more than one with nearly all of the best is not looked at.
    """
    result = result_of(system, folder)
    if "recall" in result and set(result["recall"]) <= set(settings):
        return
    few, recalls, costs = queries[:SWEEP_QUERIES], {}, {}
    for setting in settings:
        started_s = time.process_time()
        found = search(few, setting, 1)
        costs[setting] = time.process_time() - started_s
        recalls[setting] = measured(found, truth)
        if recalls[setting] > 0.9985 and not system.ours:
            break
    front: list[str] = []
    for setting in sorted(recalls, key=lambda one: (costs[one], -recalls[one])):
        is_better = not front or recalls[setting] > recalls[front[-1]] + 1e-4
        if is_better and (recalls[setting] >= LEAST_RECALL or system.ours or len(settings) == 1):
            front.append(setting)
    if system.ours:
        front = settings
    elif len(front) > MAX_TIMED_SETTINGS:
        near = {min(front, key=lambda one: abs(recalls[one] - wanted)) for wanted in _wanted_recalls()}
        front = [setting for setting in front if setting in near]
    keep(system, folder, result | {"recall": recalls, "timed": front})


def _wanted_recalls() -> list[float]:
    return [0.87, 0.905, 0.93, 0.955, 0.97, 0.985, 0.992, 0.998]


def measured(found: np.ndarray[Any, np.dtype[np.int64]], truth: Hits) -> float:
    """recall@10 of row numbers, ties counted in the finder's favour."""
    hits = Hits(np.where(found < 0, NO_HIT, found), np.zeros(found.shape, np.float32))
    return recall_at(hits, Hits(truth.ids[: len(found)], truth.scores[: len(found)]), K)


def time_in_rounds(
    opened: dict[str, Search], queries: Vectors, truth: Hits, folder: Path, *, num_rounds: int
) -> None:
    """Every timed setting of every system once a round, each on as many queries as its slice allows.

    Rounds are kept, and gone on with, for the very same settings only: rates are compared within a round.
    """
    todo = [(name, setting) for name in opened for setting in result_of(name, folder)["timed"]]
    counts: dict[tuple[str, str], int] = {}
    for name, setting in todo:
        started_s = time.monotonic()
        opened[name](queries[:100], setting, 1)
        rate = 100 / max(time.monotonic() - started_s, 1e-6)
        counts[name, setting] = int(np.clip(rate * SLICE_S, 50, len(queries)))
        result = result_of(name, folder)
        if setting not in result.setdefault("recall_all", {}):
            result["recall_all"][setting] = measured(opened[name](queries, setting, 1), truth)
            keep(name, folder, result)
    kept = result_of(ROUNDS, folder)
    if kept.get("of") != [list(pair) for pair in todo]:
        kept = {"of": todo, "rounds": []}
    for number in range(len(kept["rounds"]), num_rounds):
        order = np.random.default_rng(number).permutation(len(todo))
        found: dict[str, dict[str, list[float]]] = {name: {} for name in opened}
        for place in order.tolist():
            name, setting = todo[place]
            found[name][setting] = rates(opened[name], queries[: counts[name, setting]], setting)
        kept["rounds"].append(found)
        keep(ROUNDS, folder, kept)
        print(f"round {number + 1} of {num_rounds}", flush=True)


def rates(search: Search, queries: Vectors, setting: str) -> list[float]:
    """Queries per second: of CPU time and of the clock with one thread, of the clock with two."""
    cpu_s, clock_s = time.process_time(), time.monotonic()
    repeats = 0
    while time.monotonic() - clock_s < SLICE_S:
        search(queries, setting, 1)
        repeats += 1
    one = (time.process_time() - cpu_s, time.monotonic() - clock_s)
    clock_s, pairs = time.monotonic(), 0
    while time.monotonic() - clock_s < SLICE_S / 2:
        search(queries, setting, 2)
        pairs += 1
    two = time.monotonic() - clock_s
    return [repeats * len(queries) / one[0], repeats * len(queries) / one[1], pairs * len(queries) / two]


def points_of(system: System, folder: Path) -> list[dict[str, Any]]:
    """The measured settings of a system: recall, and the medians of its rates."""
    result, rounds = result_of(system, folder), result_of(ROUNDS, folder)["rounds"]
    points = []
    for setting in result["timed"]:
        values = np.array([one[system.name][setting] for one in rounds])
        cpu, clock, two = np.median(values, axis=0).tolist()
        spread = float(np.ptp(values[:, 0]) / cpu)
        recall = result["recall_all"][setting]
        points.append({"setting": setting, "recall": recall, "cpu": cpu, "clock": clock, "two": two})
        points[-1]["spread"] = spread
    return points


def print_curves(systems: list[System], folder: Path) -> None:
    """One table row per system and setting."""
    print("\n| system | setting | build CPU s | MB | recall@10 | q/CPU s | spread | q/s | q/s, 2 threads |")
    print("|---|---|---|---|---|---|---|---|---|")
    for system in systems:
        result = result_of(system, folder)
        for point in points_of(system, folder):
            print(
                f"| {system.name} | {point['setting']} | {result['build_cpu_s']} "
                f"| {result['size_bytes'] / 1e6:,.0f} | {point['recall']:.4f} | {point['cpu']:,.0f} "
                f"| {point['spread']:.0%} | {point['clock']:,.0f} | {point['two']:,.0f} |"
            )


def print_winners(systems: list[System], folder: Path) -> None:
    """For each recall level the fastest setting of every system that reaches it, the fastest first.

    Below that, what `auto` was tuned to for this level, and how it stands to the fastest FAISS type that is
    not larger: 1.00 is as fast. It is searched by the project's searcher, FAISS's types by FAISS alone.
    """
    for target in TARGETS:
        best = []
        for system in systems:
            good = [point for point in points_of(system, folder) if point["recall"] >= target]
            if good and not system.ours:
                point = max(good, key=lambda one: float(one["cpu"]))
                best.append((point["cpu"], system, point))
        print(f"\nrecall@10 of at least {target:.2f}: queries per CPU second, MB")
        for rate, system, point in sorted(best, key=lambda one: -one[0]):
            size = result_of(system, folder)["size_bytes"] / 1e6
            told = f"{point['setting']}, recall {point['recall']:.4f}"
            print(f"  {rate:9,.0f} {size:7,.0f}  {system.name}  ({told})")
        for system in systems:
            for point in points_of(system, folder) if system.ours else []:
                if not point["setting"].startswith(f"{target:.2f} "):
                    continue
                size = result_of(system, folder)["size_bytes"]
                rivals = [
                    rate
                    for rate, one, _ in best
                    if one.name.startswith("FAISS") and result_of(one, folder)["size_bytes"] <= 1.02 * size
                ]
                ratio = point["cpu"] / max(rivals) if rivals else float("nan")
                print(
                    f"  {point['cpu']:9,.0f} {size / 1e6:7,.0f}  {system.name}  ({point['setting']}, recall "
                    f"{point['recall']:.4f}): {ratio:.2f} of the fastest FAISS type of its size"
                )


def densified(rows: Vectors, factor: int) -> Vectors:
    """`factor` times as many rows: the real ones, then mixtures of each with one of its near neighbours."""
    if factor == 1:
        return rows
    plan = plan_index(len(rows), rows.shape[1], IndexConfig(factory="IVF256,SQ8"))
    index = train_index(rows[:20_000], plan)
    add_vectors(index, np.arange(len(rows)), rows)
    index.nprobe = 4
    neighbours = index.search(rows, factor)[1]
    rng = np.random.default_rng(0)
    parts = [rows]
    for place in range(1, factor):
        share = rng.uniform(0.3, 0.7, size=(len(rows), 1)).astype(np.float32)
        noise = rng.standard_normal(rows.shape, dtype=np.float32) * np.float32(0.1 / np.sqrt(rows.shape[1]))
        other = rows[np.maximum(neighbours[:, place], 0)]
        parts.append(normalize_rows((1 - share) * rows + share * other + noise))
    return np.concatenate(parts)


if __name__ == "__main__":
    main()
