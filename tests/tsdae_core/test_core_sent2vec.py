"""Sent2Vec: its loss against a loop over numpy, training that finds topics, files."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tsdae_core import sent2vec
from tsdae_core.ragged import Ragged
from tsdae_core.sent2vec import Sent2Vec, Sent2VecConfig, train_sent2vec

SMALL = Sent2VecConfig(
    dim=16,
    num_buckets=500,
    min_count=1,
    dropped_ngrams=0,
    subsample=0.0,
    num_epochs=3,
    num_negatives=5,
    batch_size=16,
)
TOPICS = [["cat", "dog", "pet", "fur", "paw", "tail"], ["bank", "loan", "rate", "cash", "debt", "bond"]]


def topic_texts(count=160):
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(TOPICS[i % 2], size=5)) for i in range(count)]


def log_sigmoid(x):
    return -np.log1p(np.exp(-x))


def test_the_loss_is_negative_sampling_of_each_word_from_the_rest():
    words = Ragged.from_rows([[0, 1, 2], [3, 1]], dtype=np.int64)
    frequency = np.array([4.0, 3.0, 2.0, 1.0])
    model = sent2vec._Sent2VecModel(4, SMALL, seed=0)
    with torch.no_grad():
        for param in model.parameters():
            param.normal_(generator=torch.Generator().manual_seed(1))
    batch = sent2vec._draw(words, np.array([7, 9]), frequency, SMALL, seed=0, epoch=0)
    features, offsets, targets = batch.features.numpy(), batch.offsets.numpy(), batch.words.numpy()
    row, negatives = batch.row.numpy(), batch.negatives.numpy()
    assert targets.tolist() == [0, 1, 2, 3, 1]
    assert np.diff(offsets).tolist() == [5, 3]  # three words and two bigrams, two words and one
    assert (features[[3, 4, 7]] >= 4).all()
    source, target = model.source.weight.detach().numpy(), model.target.weight.detach().numpy()
    total = 0.0
    # Of the bigrams those without the target: else two of them would give it away.
    kept = [[1, 2, 4], [0, 2], [0, 1, 3], [1], [0]]
    for place, word in enumerate(targets):
        rest = features[offsets[row[place]] : offsets[row[place] + 1]][kept[place]]
        context = source[rest].mean(0)
        total -= log_sigmoid(context @ target[word])
        total -= sum(log_sigmoid(-(context @ target[other])) for other in negatives[place])
        assert word not in negatives[place]
    assert model(batch).item() == pytest.approx(total / len(targets), rel=1e-4)


def test_dropped_ngrams_are_in_no_context_of_their_pass():
    """Each sentence of four words loses one of its three bigrams; the loss is that of what is left."""
    words = Ragged.from_rows([[0, 1, 2, 3], [3, 2, 1, 0]] * 20, dtype=np.int64)
    frequency = np.array([4.0, 3.0, 2.0, 1.0])
    config = replace(SMALL, dropped_ngrams=1)
    model = sent2vec._Sent2VecModel(4, config, seed=0)
    with torch.no_grad():
        model.target.weight.normal_(generator=torch.Generator().manual_seed(1))
    rows = np.arange(40)
    whole, batch, later = (
        sent2vec._draw(words, rows, frequency, each, seed=0, epoch=epoch)
        for each, epoch in ((SMALL, 0), (config, 0), (config, 1))
    )
    kept = np.split(batch.features.numpy(), batch.offsets.numpy()[1:-1])
    everything = np.split(whole.features.numpy(), whole.offsets.numpy()[1:-1])
    assert not torch.equal(batch.features, later.features)
    lost = [set(all_of.tolist()) - set(some.tolist()) for all_of, some in zip(everything, kept, strict=True)]
    assert {len(some) for some in kept} == {6}
    assert all(max(some[:4]) < 4 <= min(one) for some, one in zip(kept, lost, strict=True))
    assert len(set(map(frozenset, lost))) > 3
    source, target = model.source.weight.detach().numpy(), model.target.weight.detach().numpy()
    total = 0.0
    for word, row, negatives in zip(batch.words, batch.row, batch.negatives.numpy(), strict=True):
        sentence = words.row(int(row)).tolist()
        place = sentence.index(int(word))
        over = {int(word)} | {
            int(everything[row][4 + start]) for start in (place - 1, place) if 0 <= start < 3
        }
        context = source[[feature for feature in kept[row] if feature not in over]].mean(0)
        total -= log_sigmoid(context @ target[word])
        total -= sum(log_sigmoid(-(context @ target[other])) for other in negatives)
    assert model(batch).item() == pytest.approx(total / len(batch.words), rel=1e-4)


def test_rare_words_are_predicted_neither_for_nor_against():
    words = Ragged.from_rows([[0, 1, 2, 3]] * 30, dtype=np.int64)
    frequency = np.array([9.0, 2.0, 8.0, 7.0])
    config = replace(SMALL, min_target_count=5)
    batch = sent2vec._draw(words, np.arange(30), frequency, config, seed=0, epoch=0)
    assert set(batch.words.tolist()) == set(batch.negatives.flatten().tolist()) == {0, 2, 3}
    assert not (batch.negatives == batch.words[:, None]).any()
    with pytest.raises(ValueError, match="fewer than 2 words occur 99 times"):
        train_sent2vec(topic_texts(20), replace(SMALL, min_target_count=99), seed=0)


def test_training_brings_sentences_of_one_topic_together_and_repeats():
    texts = topic_texts()
    model = train_sent2vec(texts, SMALL, seed=0)
    a, b, c, d = model.encode(["cat fur tail", "dog paw pet", "loan debt cash", "bond rate"], normalize=True)
    assert min(a @ b, c @ d) > max(a @ c, a @ d, b @ c, b @ d) + 0.3
    again = train_sent2vec(texts, SMALL, seed=0)
    assert np.array_equal(again.table, model.table)
    assert not np.array_equal(train_sent2vec(texts, SMALL, seed=1).table, model.table)


def test_a_vector_is_the_mean_of_words_and_bigrams_and_files_keep_it(tmp_path):
    model = train_sent2vec(topic_texts(40), SMALL, seed=0)
    text = "Cat, dog unknownword!"
    rows = model.features([text]).values
    assert rows[:2].tolist() == [model.words.index("cat"), model.words.index("dog")]
    assert len(rows) == 3
    np.testing.assert_allclose(model.encode([text])[0], model.table[rows].mean(0), rtol=1e-5)
    assert not model.encode(["unknownword", ""]).any()
    assert model.encode([]).shape == (0, model.dim)
    model.save(tmp_path)
    again = Sent2Vec.load(tmp_path)
    assert again.config == model.config
    np.testing.assert_array_equal(again.encode([text]), model.encode([text]))
    with pytest.raises(ValueError, match="no Sent2Vec model"):
        Sent2Vec.load(tmp_path / "none")


def test_frequent_words_are_targets_less_often_and_rare_words_have_no_vector():
    texts = ["the the the the a rare" if i == 0 else "the the the the a b" for i in range(50)]
    counts = np.array([200.0, 50.0])
    words = Ragged.from_rows([[0, 0, 0, 0, 1]] * 50, dtype=np.int64)
    config = Sent2VecConfig(subsample=1e-2, dim=8, num_buckets=10)
    targets = sent2vec._draw(words, np.arange(50), counts, config, seed=0, epoch=0).words.numpy()
    assert np.mean(targets == 0) < 0.75  # 0.8 of the words
    assert 0 < len(targets) < 0.5 * 250
    assert (
        "rare" not in train_sent2vec(texts, Sent2VecConfig(dim=8, num_buckets=10, num_epochs=1), seed=0).words
    )
    with pytest.raises(ValueError, match="fewer than 2 words"):
        train_sent2vec(["a b"], Sent2VecConfig(), seed=0)
    with pytest.raises(ValueError, match="dim"):
        Sent2VecConfig(dim=0)
    with pytest.raises(ValueError, match="dropped_ngrams"):
        Sent2VecConfig(dropped_ngrams=-1)
