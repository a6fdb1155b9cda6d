"""A tiny world for studies: a corpus of made-up words with two tasks, and a study over them."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import yaml

_WORDS = ["ba", "kori", "mi", "tula", "se", "rin", "po", "da", "lu", "fen"]


def benchmark_module(name):
    """A script of benchmarks as a module."""
    folder = Path(__file__).parents[2] / "benchmarks"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def write_world(folder):
    """A corpus, a task of pairs and one of candidates; returns the folder."""
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(_WORDS, size=3 + i % 6)) + f" {i}" for i in range(60)]
    (folder / "corpus.txt").write_text("\n".join(lines) + "\n")
    rows = []
    for i in range(20):
        left = " ".join(rng.choice(_WORDS, size=5))
        right = left if i % 2 else " ".join(rng.choice(_WORDS, size=5))
        rows.append(f"{left}\t{right} x\t{i % 2}")
    (folder / "pairs.tsv").write_text("sentence1\tsentence2\tlabel\n" + "\n".join(rows) + "\n")
    rows = []
    for i in range(8):
        query = " ".join(rng.choice(_WORDS, size=4))
        for j in range(3):
            text = query + " y" if j == i % 3 else " ".join(rng.choice(_WORDS, size=4))
            rows.append(f"{query} {i}\t{text}\t{int(j == i % 3)}")
    (folder / "rerank.tsv").write_text("query\ttext\tlabel\n" + "\n".join(rows) + "\n")
    return folder


def write_study(folder, path="study.yaml", **changes):
    """A study of two settings, two domains and two seeds; `changes` are top-level keys."""
    scratch = {
        "num_layers": 1,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 60,
        "max_tokens": 24,
    }
    study = {
        "name": "tiny",
        "title": "A tiny study",
        "workspace": str(folder / "work"),
        "variables": {"data": str(folder)},
        "base": {
            "corpus": {"num_shards": 1},
            "tracking": {"uri": f"sqlite:///{folder}/mlflow.db"},
            "model": {"start": "scratch", "max_tokens": 24, "scratch": scratch},
            "train": {
                "num_steps": 4,
                "batch_size": 8,
                "validation_rows": 8,
                "checkpoint_every": 2,
                "optim": {"lr": 1e-3},
            },
        },
        "tasks": {
            "pairs": {"kind": "pairs", "folder": "${data}/pairs.tsv", "published": {"bm25": 50.0}},
            "rerank": {"kind": "rerank", "folder": "${data}/rerank.tsv"},
        },
        "domains": {
            "pairs": {"corpus": "${data}/corpus.txt", "tasks": ["pairs"]},
            "rerank": {"corpus": "${data}/corpus.txt", "tasks": ["rerank"]},
        },
        "axes": {"method": {"tsdae": {}, "bm25": {"system.kind": "bm25"}}},
        "seeds": [0, 1],
        "score_steps": [0, 3],
        "claims": [{"text": "TSDAE is better than BM25", "better": "tsdae", "than": "bm25"}],
    }
    if "axes" in changes:  # of settings that are not there any more
        del study["tasks"]["pairs"]["published"]
    (folder / path).write_text(yaml.safe_dump(study | changes, sort_keys=False))
    return folder / path


def write_shipped_world(folder):
    """What configs/studies read at toy size, laid out as by benchmarks/study_data.py, of made-up words."""
    rng = np.random.default_rng(1)

    def text(size):
        return " ".join(rng.choice(_WORDS, size=size))

    def write(name, lines):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("\n".join(lines) + "\n")

    urls, pit, pairs, scores = [], [], [], ["sentence1\tsentence2\tscore"]
    for i in range(16):
        left = text(5)
        right = left + " x" if i % 2 else text(5)
        urls.append(f"{left}\t{right}\t({5 if i % 2 else 1}, 6)")
        pit.append(f"1\ttopic\t{left}\t{right}\t{5 if i % 2 else 0}")
        pairs.append(json.dumps({"sentence1": left, "sentence2": right, "label": i % 2}))
        scores.append(f"{left}\t{right}\t{i % 6}")
    write("tasks/twitterpara/Twitter_URL_Corpus_test.txt", urls)
    write("tasks/twitterpara/test.data", pit)
    write("tasks/pit-dev.jsonl", pairs)
    for split in ("dev", "test"):
        write(f"tasks/stsb/{split}.tsv", scores)
    documents = [text(6) for _ in range(12)]
    for name in ("debian", "debian-dev"):
        write(
            f"tasks/{name}/corpus.jsonl",
            (json.dumps({"_id": f"d{i}", "text": t}) for i, t in enumerate(documents)),
        )
        write(
            f"tasks/{name}/queries.jsonl", (json.dumps({"_id": f"q{i}", "text": text(3)}) for i in range(6))
        )
        write(
            f"tasks/{name}/qrels.tsv", ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in range(6))]
        )
    for name in ("twitter", "semeval", "scifact", "debian", "stsb"):
        write(f"corpora/{name}.txt", [f"{text(3 + i % 5)} {i}" for i in range(60)])
    rows = {
        "twitter_pairs": lambda i: {"sentence1": text(4), "sentence2": text(4), "label": i % 2},
        "debian": lambda i: {"anchor": f"{text(4)} {i}", "positive": f"{text(4)} {i}"},
        "stsb": lambda i: {"sentence1": text(4), "sentence2": text(4), "score": float(i % 6)},
        "sick_nli": lambda i: {
            "premise": text(4),
            "hypothesis": text(4),
            "label": ("contradiction", "entailment", "neutral")[i % 3],
        },
    }
    for name, make in rows.items():
        write(f"labels/{name}.jsonl", [json.dumps(make(i)) for i in range(64)])
    return folder
