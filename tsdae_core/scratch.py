"""A small encoder from nothing: a tokenizer trained on the corpus and a fresh BERT-shaped backbone.

Owns both, and the SVD start of the token embeddings. Short training from random weights first lowers
retrieval scores; embeddings that start as latent semantic factors (Deerwester et al. 1990) of the corpus
start far better. Knows nothing of objectives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from tsdae_core.backbone import word_embeddings
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.hashing import fold_key, keyed_uniform
from tsdae_core.lsa_start import lsa_head, start_as_lsa
from tsdae_core.pooling import PoolingMode
from tsdae_core.scratch_config import ScratchConfig
from tsdae_core.tokens import tokenize_texts

_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_SVD_SENTENCES = 50_000
_ALPHABET_SIZE = 1000


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a lower-casing WordPiece tokenizer with BERT's special tokens; same texts, same tokenizer.

    Args:
        texts: read once and held in memory; pass a sample of a large corpus.
        vocab_size: upper bound, special tokens included.
    """
    texts = list(texts)
    core = _wordpiece(models.WordPiece(unk_token="[UNK]"))
    alphabet, continuations = _alphabet(texts, core)
    # The Rust trainer numbers continuation letters in the order of a randomly seeded hash map and breaks ties
    # by number; naming them beforehand makes the result a function of the texts.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*_SPECIALS, *continuations],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core = _wordpiece(models.WordPiece(vocab=core.get_vocab(), unk_token="[UNK]"))
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, core.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    names = {f"{name[1:-1].lower()}_token": name for name in _SPECIALS}
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(tokenizer_object=core, **names)
    return tokenizer


def _wordpiece(model: models.WordPiece) -> Tokenizer:
    core = Tokenizer(model)
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    return core


def _alphabet(texts: Sequence[str], core: Tokenizer) -> tuple[list[str], list[str]]:
    """Return the most frequent characters, and those of them that continue a word as ``##c``."""
    chunks = Counter(chunk for text in texts for chunk in core.normalizer.normalize_str(text).split())
    counts: Counter[str] = Counter()
    continuing: set[str] = set()
    for chunk, count in chunks.items():
        for word, _ in core.pre_tokenizer.pre_tokenize_str(chunk):
            for character in word:
                counts[character] += count
            continuing.update(word[1:])
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    alphabet = sorted(ranked[:_ALPHABET_SIZE])
    return alphabet, [f"##{character}" for character in alphabet if character in continuing]


def build_scratch_encoder(
    config: ScratchConfig,
    tokenizer: PreTrainedTokenizerFast,
    *,
    pooling: PoolingMode,
    seed: int,
    texts: Iterable[str] | None = None,
) -> SentenceEncoder:
    """Build an untrained encoder whose weights depend on (config, tokenizer, seed, texts) alone.

    Args:
        config: its shape.
        tokenizer: usually from `train_tokenizer`; its ``model_max_length`` is set to the encoder's.
        pooling: of the encoder.
        seed: of the weights.
        texts: a sample of the corpus, needed for the SVD start; a bounded number is read.

    Raises:
        ValueError: if an SVD start has no texts.
    """
    tokenizer.model_max_length = config.max_tokens
    bert = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_tokens,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.dropout,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(fold_key("scratch", seed) >> 1)
        backbone = BertModel(bert, add_pooling_layer=False)
    head = None
    if config.embedding_init != "random":
        if texts is None:
            raise ValueError(
                f"embedding_init {config.embedding_init!r} needs texts; pass a sample of the corpus"
            )
        sample = list(islice(texts, _SVD_SENTENCES))
        factors = svd_embeddings(sample, tokenizer, config=config, seed=seed)
        if config.embedding_init == "lsa":
            start_as_lsa(backbone, factors)
            head = lsa_head(backbone, sample, tokenizer, max_tokens=config.max_tokens)
        else:
            known = np.flatnonzero(np.abs(factors).sum(1) > 0)
            with torch.no_grad():
                word_embeddings(backbone).weight[torch.from_numpy(known)] = torch.from_numpy(factors[known])
    return SentenceEncoder(backbone, tokenizer, pooling=pooling, max_tokens=config.max_tokens, lm_head=head)


def svd_embeddings(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerFast, *, config: ScratchConfig, seed: int
) -> NDArray[np.float32]:
    """Return float32[V, D]: left singular vectors of the term-sentence matrix, times singular values.

    An entry is ``log(1 + count) * log(n / document frequency)``. Rows of tokens that do not occur are zero;
    the others have, all together, the standard deviation 0.02 that BERT starts with.

    Raises:
        ValueError: if fewer than two texts have tokens.
    """
    tokens = tokenize_texts(texts, tokenizer, max_tokens=config.max_tokens)
    num_texts, vocab_size = len(tokens), len(tokenizer)
    if int((tokens.ids.lengths > 0).sum()) < 2:
        raise ValueError("embedding_init 'svd' needs at least two texts with words; use 'random'")
    column = np.repeat(np.arange(num_texts), tokens.ids.lengths)
    ones = np.ones(column.shape[0], dtype=np.float64)
    counts = scipy.sparse.csr_matrix((ones, (tokens.ids.values, column)), shape=(vocab_size, num_texts))
    frequency = np.diff(counts.indptr)
    counts.data = np.log1p(counts.data)
    idf = np.log((num_texts + 1) / np.maximum(frequency, 1))
    matrix = scipy.sparse.diags(idf).dot(counts).tocsr()
    rank = min(config.hidden_size, min(matrix.shape) - 1)
    start = keyed_uniform(fold_key("svd", seed), np.arange(min(matrix.shape))) - 0.5
    left, values, _ = scipy.sparse.linalg.svds(matrix, k=rank, v0=start, solver="arpack")
    order = np.argsort(-values)
    left, values = left[:, order], values[order]
    signs = np.sign(left[np.abs(left).argmax(0), np.arange(rank)])
    factors = np.zeros((vocab_size, config.hidden_size), dtype=np.float64)
    factors[:, :rank] = left * signs * values
    seen = frequency > 0
    factors *= 0.02 / max(float(factors[seen].std()), 1e-12)
    return factors.astype(np.float32)
