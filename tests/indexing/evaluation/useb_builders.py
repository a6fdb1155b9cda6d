"""Small folders in the layout of USEB, with its oddities, and an encoder without a model."""

import hashlib
import json

import numpy as np

WORDS = ("disk", "boot", "grub", "wifi", "driver", "kernel", "panic", "mount", "swap", "user", "sudo", "apt")


def sentence(rng, length=4):
    return " ".join(rng.choice(WORDS, size=length))


def encode(texts, dim=24):
    """A bag of hashed words: equal words, equal parts; NaN never."""
    out = np.zeros((len(texts), dim), np.float32)
    for place, text in enumerate(texts):
        for word in sorted(text.split()):  # equal bags, equal bits
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
            out[place] += np.random.default_rng(seed).standard_normal(dim).astype(np.float32)
    return out


def write_askubuntu(folder, rng, num_queries=12, end="\n", mark=""):
    folder.mkdir(parents=True, exist_ok=True)
    pool = [f"{100 + number}\t{sentence(rng)}\t{sentence(rng, 8)}" for number in range(60)]
    (folder / "text_tokenized.txt").write_bytes((mark + end.join(pool) + end).encode())
    for split in ("dev", "test"):
        lines = []
        for number in range(num_queries):
            candidates = [str(100 + n) for n in rng.choice(np.arange(20, 60), size=20, replace=False)]
            relevant = (
                [] if number % 5 == 4 else list(rng.choice(candidates, size=1 + number % 4, replace=False))
            )
            scores = np.sort(rng.integers(1, 9, size=20))[::-1] / 2
            columns = (
                str(100 + number),
                " ".join(relevant),
                " ".join(candidates),
                " ".join(map(str, scores)),
            )
            lines.append("\t".join(columns))
        (folder / f"{split}.txt").write_bytes((mark + end.join(lines) + end).encode())


def write_cqadupstack(folder, rng, forums=("android", "gis"), pool_size=150):
    folder.mkdir(parents=True, exist_ok=True)
    corpus = {f: {f"{f}{n}": sentence(rng) for n in range(pool_size)} for f in forums}
    splits = {
        split: {
            forum: {
                f"{forum}{n}": [
                    f"{forum}{m}" for m in rng.choice(np.arange(20, pool_size), size=2, replace=False)
                ]
                for n in range(start, start + 4 + 3 * place)
            }
            for place, forum in enumerate(forums)
        }
        for split, start in (("valid", 0), ("test", 10))
    }
    (folder / "corpus.json").write_text(json.dumps(corpus))
    (folder / "retrieval_split.json").write_text(json.dumps(splits))


def write_twitterpara(folder, rng, num_pairs=60):
    folder.mkdir(parents=True, exist_ok=True)
    url = [f"{sentence(rng)}\t{sentence(rng)}\t({n % 7}, 6)\thttp://x" for n in range(num_pairs)]
    (folder / "Twitter_URL_Corpus_test.txt").write_text("\n".join(url) + "\n")
    pit = [f"{n}\ttopic\t{sentence(rng)}\t{sentence(rng)}\t{n % 6}\ta\tb" for n in range(num_pairs)]
    (folder / "test.data").write_text("\n".join(pit) + "\n")
    (folder / "test.label").write_text("")


def write_scidocs(folder, rng, num_queries=6):
    folder.mkdir(parents=True, exist_ok=True)
    corpus = {f"p{n}": {"title": sentence(rng)} for n in range(60)}
    corpus["p30"]["title"] = None
    corpus["p31"]["title"] = ""
    tree = {"corpus": corpus}
    for split in ("valid", "test"):
        tree[split] = {
            relation: {
                f"p{n}": {
                    f"p{m}": int(i < 5)
                    for i, m in enumerate(rng.choice(np.arange(20, 60), 30, replace=False))
                }
                for n in range(num_queries)
            }
            for relation in ("cite", "cocite", "coview", "coread")
        }
    (folder / "data.json").write_text(json.dumps(tree))


def write_all(folder, seed=0):
    rng = np.random.default_rng(seed)
    write_askubuntu(folder / "askubuntu", rng)
    write_cqadupstack(folder / "cqadupstack", rng)
    write_twitterpara(folder / "twitterpara", rng)
    write_scidocs(folder / "scidocs", rng)
    return folder
