"""Added words: where they come from, and that they live through training, saving and loading."""

from itertools import pairwise

import core_builders
import numpy as np
import pytest
import torch

from tsdae_core.checkpoint import load_training_state, save_training_state
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.objective import build_objective
from tsdae_core.optim import OptimConfig, build_optimizer
from tsdae_core.scratch import train_tokenizer
from tsdae_core.step import training_step
from tsdae_core.tokens import tokenize_texts
from tsdae_core.vocabulary import add_tokens, mine_tokens, read_tokens

MAKERS = {
    "wordpiece": lambda texts: train_tokenizer(texts, vocab_size=60),
    "byte_level": core_builders.byte_level_tokenizer,
    "unigram": core_builders.unigram_tokenizer,
}
TEXTS = ["a bc de", "fghij a ij", "a b c d e f g h i j k l m n o p q r s t u v w x y z", "aa bb"] * 5


def num_tokens(tokenizer, texts):
    return int(tokenize_texts(texts, tokenizer, max_tokens=500).ids.lengths.sum())


@pytest.mark.parametrize("kind", MAKERS)
def test_mining_takes_the_words_that_shorten_the_texts_most(kind):
    tokenizer = MAKERS[kind](TEXTS)
    domain = ["the pneumothorax case", "pneumothorax and haemoptysis", "xq pneumothorax", "haemoptysis xq"]
    assert mine_tokens(domain, tokenizer, num_tokens=2, min_count=2) == ["pneumothorax", "haemoptysis"]
    assert mine_tokens(iter(domain), tokenizer, num_tokens=9, min_count=3) == ["pneumothorax"]
    assert mine_tokens([], tokenizer, num_tokens=9, min_count=1) == []
    before = num_tokens(tokenizer, domain)
    words = (("pneumothorax", 3), ("haemoptysis", 2))
    saved = sum(count * (num_tokens(tokenizer, [f" {word}"]) - 1) for word, count in words)
    encoder = core_builders.bert_encoder(tokenizer)
    add_tokens(encoder, mine_tokens(domain, tokenizer, num_tokens=2, min_count=2))
    assert before - num_tokens(encoder.tokenizer, domain) == pytest.approx(saved, abs=2)
    assert mine_tokens(domain, encoder.tokenizer, num_tokens=2, min_count=2) in (["xq"], [])


@pytest.mark.parametrize("kind", MAKERS)
def test_an_added_word_is_one_unit_and_never_part_of_a_longer_word(kind):
    encoder = core_builders.bert_encoder(MAKERS[kind](TEXTS))
    longer = "xpneumothoraxes"
    before = encoder.tokenizer(longer)["input_ids"]
    add_tokens(encoder, ["pneumothorax"])
    assert encoder.tokenizer(longer)["input_ids"] == before
    (place,) = encoder.tokenizer("pneumothorax", add_special_tokens=False)["input_ids"]
    tokens = tokenize_texts(["a pneumothorax a"], encoder.tokenizer, max_tokens=50)
    starts = np.append(np.flatnonzero(tokens.word_starts), len(tokens.word_starts))
    words = [tokens.ids.values[a:b].tolist() for a, b in pairwise(starts)]
    assert len(words) == 3
    assert words[1] == [place]


def test_mining_folds_what_the_tokenizer_folds_and_leaves_scripts_without_spaces(texts):
    tokenizer = train_tokenizer(texts, vocab_size=100)
    given = ["Zygote ZYGOTE, zygote; x_y_z 世界世界 zygote-like"] * 2
    assert mine_tokens(given, tokenizer, num_tokens=5, min_count=2) == ["zygote", "zygote-like"]
    with pytest.raises(ValueError, match="at least 1"):
        mine_tokens(given, tokenizer, num_tokens=0, min_count=2)


def test_words_come_from_a_file_one_a_line(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("alpha\n\n  beta \nalpha\nGänse\n", encoding="utf-8")
    assert read_tokens(path) == ["alpha", "beta", "Gänse"]
    path.write_text("alpha\ntwo words\n")
    with pytest.raises(ValueError, match="line 2: 'two words' has a space"):
        read_tokens(path)
    path.write_text("\n")
    with pytest.raises(ValueError, match="holds no words"):
        read_tokens(path)
    with pytest.raises(ValueError, match="cannot read words"):
        read_tokens(tmp_path / "none.txt")


def test_added_rows_live_through_training_a_checkpoint_and_the_encoders_folder(texts, tmp_path):
    encoder = core_builders.bert_encoder(train_tokenizer(texts, vocab_size=150))
    assert add_tokens(encoder, ["abcdefgh", "jihgfedc"]) == 2
    encoder.save(tmp_path / "start")

    def build():
        start = SentenceEncoder.load(tmp_path / "start")
        objective = build_objective("tsdae", tokenizer=start.tokenizer)
        model = objective.build_model(start, seed=0).train()
        return objective, model, build_optimizer(model, OptimConfig(lr=1e-2))

    objective, model, optimizer = build()
    tokens = tokenize_texts(["abcdefgh a jihgfedc b"] * 4, model.encoder.tokenizer, max_tokens=30)
    batch = objective.make_batch(tokens, np.arange(4), seed=0, epoch=0)
    before = model.encoder.backbone.embeddings.word_embeddings.weight[-2:].detach().clone()
    for _ in range(2):
        training_step(model, batch, optimizer, global_num_targets=100, max_grad_norm=1.0)
    rows = model.encoder.backbone.embeddings.word_embeddings.weight[-2:]
    assert (rows != before).any(1).all()
    save_training_state(tmp_path / "state", model, optimizer, step=2, extra={})
    _, resumed, other = build()
    load_training_state(tmp_path / "state", resumed, other)
    assert torch.equal(resumed.encoder.backbone.embeddings.word_embeddings.weight[-2:], rows)
    model.encoder.save(tmp_path / "encoder", lm_head=model.lm_head)
    loaded = SentenceEncoder.load(tmp_path / "encoder")
    assert torch.equal(loaded.backbone.embeddings.word_embeddings.weight[-2:], rows)
    assert np.array_equal(loaded.encode(["abcdefgh jihgfedc"]), model.encoder.encode(["abcdefgh jihgfedc"]))
