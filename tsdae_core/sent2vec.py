"""Sent2Vec (Pagliardini et al. 2018, arXiv 1703.02507), a rival in the TSDAE paper's tables, trained here.

A sentence's vector is the mean of the vectors of its words and hashed n-grams; they learn to predict each
word from the rest of its sentence with negative sampling. Owns vocabulary, training, files and encoding.
Every random choice is keyed, so a run repeats on any machine. Knows nothing of Transformers.

Shapes: B sentences, F features of all sentences, P target words, Q negatives each, D width.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from tsdae_core.hashing import fold_key, keyed_hash, keyed_permutation, keyed_uniform
from tsdae_core.ragged import Int64s, Ragged, expand_spans
from tsdae_core.sent2vec_config import NgramHash
from tsdae_core.sent2vec_config import Sent2VecConfig as Sent2VecConfig

_WORD = re.compile(r"\w+")
_ORIGINAL_FACTOR = np.uint64(116049371)
_WEIGHTS, _ABOUT = "model.safetensors", "sent2vec.json"


class Sent2Vec:
    """A trained model.

    Attributes:
        words: the vocabulary; word i has row i of ``table``.
        table: float32[V + num_buckets, D], words first.
    """

    def __init__(self, words: Sequence[str], table: NDArray[np.float32], config: Sent2VecConfig) -> None:
        self.words, self.table, self.config = list(words), table, config
        self._index = {word: place for place, word in enumerate(self.words)}

    @property
    def dim(self) -> int:
        """Width of the sentence vectors."""
        return int(self.table.shape[1])

    def encode(self, texts: Iterable[str], *, normalize: bool = False) -> NDArray[np.float32]:
        """Return float32[n, dim]; a text without a known word is a zero vector."""
        features = self.features(texts)
        row = np.repeat(np.arange(len(features)), features.lengths)
        vectors = np.zeros((len(features), self.dim), dtype=np.float32)
        np.add.at(vectors, row, self.table[features.values])
        vectors /= np.maximum(features.lengths, 1).astype(np.float32)[:, None]
        if normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        return vectors

    def features(self, texts: Iterable[str]) -> Ragged:
        """Return rows of ``table`` per text: its known words, then its n-grams."""
        return _features(_word_ids(texts, self._index), len(self.words), self.config)

    def save(self, folder: str | Path) -> None:
        """Write the model into a folder (made if missing)."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_file({"table": np.ascontiguousarray(self.table)}, folder / _WEIGHTS)
        about = {"config": asdict(self.config), "words": self.words}
        (folder / _ABOUT).write_text(json.dumps(about, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Sent2Vec:
        """Read what `save` wrote.

        Raises:
            ValueError: if the folder holds no such model.
        """
        folder = Path(folder)
        if not is_sent2vec(folder):
            raise ValueError(f"{folder} holds no Sent2Vec model ({_ABOUT} is missing)")
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        return cls(about["words"], load_file(folder / _WEIGHTS)["table"], Sent2VecConfig(**about["config"]))


def is_sent2vec(folder: str | Path) -> bool:
    """Tell whether a folder is what `Sent2Vec.save` wrote."""
    return (Path(folder) / _ABOUT).is_file()


def train_sent2vec(texts: Sequence[str], config: Sent2VecConfig | None = None, *, seed: int) -> Sent2Vec:
    """Train on sentences.

    Raises:
        ValueError: if no word is frequent enough.
    """
    config = config or Sent2VecConfig()
    counts = Counter(word for text in texts for word in _WORD.findall(text.lower()))
    words = sorted(word for word, count in counts.items() if count >= config.min_count)
    if len(words) < 2:
        raise ValueError(
            f"fewer than 2 words occur {config.min_count} times; give more text or lower min_count"
        )
    frequency = np.array([counts[word] for word in words], dtype=np.float64)
    if (frequency >= config.min_target_count).sum() < 2:
        raise ValueError(
            f"fewer than 2 words occur {config.min_target_count} times; give more text or lower "
            "min_target_count"
        )
    word_ids = _word_ids(texts, {word: place for place, word in enumerate(words)})
    model = _Sent2VecModel(len(words), config, seed=seed)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=config.lr)
    total, done = config.num_epochs * len(word_ids), 0
    for epoch in range(config.num_epochs):
        order = keyed_permutation(len(word_ids), fold_key("sent2vec-order", seed, epoch))
        for rows in np.split(order, np.arange(config.batch_size, len(order), config.batch_size)):
            for group in optimizer.param_groups:
                group["lr"] = config.lr * (1 - done / total)
            done += len(rows)
            batch = _draw(word_ids.take(rows), rows, frequency, config, seed=seed, epoch=epoch)
            if batch is None:
                continue
            optimizer.zero_grad(set_to_none=True)
            model(batch).backward()
            optimizer.step()
    return Sent2Vec(words, model.source.weight.detach().numpy(), config)


@dataclass(frozen=True)
class _Targets:
    """A batch: features of all sentences that are not dropped, and the words to predict.

    Attributes:
        features: int64[F] rows of the table, sentence after sentence.
        offsets: int64[B + 1] where sentences begin.
        held: int64[P, M] features that hold the target itself, its word and n-grams over it; -1 fills up.
        words: int64[P] the targets.
        row: int64[P] their sentences.
        negatives: int64[P, Q].
    """

    features: Tensor
    offsets: Tensor
    held: Tensor
    words: Tensor
    row: Tensor
    negatives: Tensor


class _Sent2VecModel(nn.Module):
    def __init__(self, num_words: int, config: Sent2VecConfig, *, seed: int) -> None:
        super().__init__()
        self.source = nn.Embedding(num_words + config.num_buckets, config.dim, sparse=True)
        self.target = nn.Embedding(num_words, config.dim, sparse=True)
        generator = torch.Generator().manual_seed(fold_key("sent2vec", seed) >> 1)
        with torch.no_grad():
            self.source.weight.uniform_(-1 / config.dim, 1 / config.dim, generator=generator)
            self.target.weight.zero_()

    def forward(self, batch: _Targets) -> Tensor:
        """Return the loss summed over targets and divided by their number.

        A target is predicted from the mean of its sentence's features that do not hold it.
        """
        offsets, row_P, words_P, negatives_PQ = batch.offsets, batch.row, batch.words, batch.negatives
        sums_BD = F.embedding_bag(batch.features, self.source.weight, offsets[:-1], mode="sum", sparse=True)
        is_held_PM = batch.held >= 0
        held_PD = (self.source(batch.held.clamp(min=0)) * is_held_PM[:, :, None]).sum(1)
        others_P = (offsets[1:] - offsets[:-1])[row_P] - is_held_PM.sum(1)
        context_PD = (sums_BD[row_P] - held_PD) / others_P[:, None]
        positive_P = (context_PD * self.target(words_P)).sum(1)
        negative_PQ = (self.target(negatives_PQ) @ context_PD[:, :, None]).squeeze(2)
        loss: Tensor = -F.logsigmoid(positive_P).sum() - F.logsigmoid(-negative_PQ).sum()
        return loss / words_P.shape[0]


def _draw(
    words: Ragged,
    rows: Int64s,
    frequency: NDArray[np.float64],
    config: Sent2VecConfig,
    *,
    seed: int,
    epoch: int,
) -> _Targets | None:
    """Return a batch; None if there is no target."""
    features = _features(words, frequency.shape[0], config)
    row = np.repeat(np.arange(len(words)), words.lengths)
    position = expand_spans(np.zeros_like(words.lengths), words.lengths)
    share = frequency[words.values] / frequency.sum()
    keep = np.ones(share.shape[0])
    if config.subsample > 0:
        keep = np.sqrt(config.subsample / share) + config.subsample / share
    chosen = keyed_uniform(fold_key("sent2vec-target", seed, epoch), rows[row], position) < keep
    chosen &= words.lengths[row] > 1  # then another word is left
    is_target = frequency >= config.min_target_count
    chosen &= is_target[words.values]
    if not chosen.any():
        return None
    row, position, targets = row[chosen], position[chosen], words.values[chosen]
    rivals = np.flatnonzero(is_target)
    ladder = np.cumsum(np.sqrt(frequency[rivals]))
    draw = np.arange(config.num_negatives)
    uniform = keyed_uniform(
        fold_key("sent2vec-negative", seed, epoch), rows[row][:, None], position[:, None], draw[None, :]
    )
    drawn = np.searchsorted(ladder, uniform * ladder[-1], side="right")
    # A negative that is the target itself would undo it; the next word takes its place.
    drawn = np.where(rivals[drawn] == targets[:, None], (drawn + 1) % rivals.shape[0], drawn)
    dropped = _dropped(features, words.lengths, rows, config, seed=seed, epoch=epoch)
    places = _places_over(position, row, words.lengths, features.offsets, ngrams=config.ngrams)
    is_held = (places >= 0) & ~dropped[places]
    held = np.where(is_held, features.values[places], -1)
    of_feature = np.repeat(np.arange(len(features)), features.lengths)
    kept = Ragged(features.values[~dropped], np.bincount(of_feature[~dropped], minlength=len(features)))
    arrays = (kept.values, kept.offsets, held, targets, row, rivals[drawn])
    return _Targets(*(torch.from_numpy(np.ascontiguousarray(part, dtype=np.int64)) for part in arrays))


def _dropped(
    features: Ragged,
    num_words: Int64s,
    rows: Int64s,
    config: Sent2VecConfig,
    *,
    seed: int,
    epoch: int,
) -> NDArray[np.bool_]:
    """Tell which features, n-grams of more than one word, their sentences do without in this pass, bool[F].

    ``num_words`` (int64[B]) are the first features of each sentence.
    """
    row = np.repeat(np.arange(len(features)), features.lengths)
    place = expand_spans(np.zeros_like(features.lengths), features.lengths)
    is_ngram = place >= num_words[row]
    chance = keyed_uniform(fold_key("sent2vec-drop", seed, epoch), rows[row], place)
    order = np.lexsort((np.where(is_ngram, chance, 2.0), row))
    rank = np.empty_like(order)
    rank[order] = place  # rows stay where they are, so the n-th of a row in this order has rank n
    return np.asarray(is_ngram & (rank < config.dropped_ngrams), dtype=np.bool_)


def _places_over(
    position: Int64s, row: Int64s, lengths: Int64s, offsets: Int64s, *, ngrams: int
) -> NDArray[np.int64]:
    """Return [P, M] the places, in the features, of those that hold a target; -1 where there are fewer."""
    columns, base, length = [], offsets[row], lengths[row]
    for size in range(1, ngrams + 1):
        for shift in range(size):
            start = position - shift
            inside = (start >= 0) & (start + size <= length)
            columns.append(np.where(inside, base + start, -1))
        base = base + np.maximum(0, length - size + 1)
    return np.stack(columns, axis=1)


def _word_ids(texts: Iterable[str], index: dict[str, int]) -> Ragged:
    rows: Iterator[list[int]] = (
        [index[word] for word in _WORD.findall(text.lower()) if word in index] for text in texts
    )
    return Ragged.from_rows(rows, dtype=np.int64)


def _features(words: Ragged, num_words: int, config: Sent2VecConfig) -> Ragged:
    """Return each row's words, then its n-grams as ``num_words`` + bucket."""
    rows: list[list[NDArray[np.int64]]] = [[words.row(index)] for index in range(len(words))]
    for size in range(2, config.ngrams + 1):
        starts = np.arange(max(0, words.values.shape[0] - size + 1))
        window = [words.values[starts + shift] for shift in range(size)]
        buckets = _hash(window, config.ngram_hash) % np.uint64(config.num_buckets)
        ids = buckets.astype(np.int64) + num_words
        for index, (begin, end) in enumerate(zip(words.offsets[:-1], words.offsets[1:], strict=True)):
            rows[index].append(ids[begin : max(begin, end - size + 1)])
    return Ragged.from_rows([np.concatenate(parts) for parts in rows], dtype=np.int64)


def _hash(window: Sequence[Int64s], kind: NgramHash) -> NDArray[np.uint64]:
    """Return one hash per n-gram, whose words are at the same place in each array of the window."""
    if kind == "mixed":
        return keyed_hash(fold_key("sent2vec-ngram", len(window)), *window)
    value = window[0].astype(np.uint64)
    for words in window[1:]:  # modulo 2^64
        value = value * _ORIGINAL_FACTOR + words.astype(np.uint64)
    return value
