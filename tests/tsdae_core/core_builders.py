"""Small random tokenizers, encoders and corpora for the tests."""

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedTokenizerFast, RobertaConfig

from tsdae_core.backbone import FAMILIES, new_backbone
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.scratch import ScratchConfig, build_scratch_encoder, train_tokenizer

LETTERS = list("abcdefghij")


def make_texts(count, *, seed=0, longest=24):
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(LETTERS, size=rng.integers(1, 7))) for _ in range(150)]
    return [" ".join(rng.choice(words, size=rng.integers(1, longest))) for _ in range(count)]


def wordpiece_tokenizer(texts):
    return train_tokenizer(texts, vocab_size=200)


def byte_level_tokenizer(texts):
    """A RoBERTa-like tokenizer: byte-level BPE, <s> ... </s>."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=names,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    core.train_from_iterator(texts, trainer)
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
    )


def unigram_tokenizer(texts, *, vocab_size=120):
    """A SentencePiece-like tokenizer: Unigram pieces, a space is part of the piece after it."""
    core = Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=names, unk_token="<unk>", show_progress=False
    )
    core.train_from_iterator(texts, trainer)
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    keys = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=core, **dict(zip(keys, names, strict=True)))


def shake(module, *, seed=0, size=0.05):
    """Move every parameter off its initial value, so that zeros and ones hide no mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in module.parameters():
            param.add_(torch.randn(param.shape, generator=generator) * size)
    return module


def bert_encoder(tokenizer, *, pooling="cls", dropout=0.0, num_layers=2, seed=0):
    config = ScratchConfig(
        num_layers=num_layers,
        hidden_size=32,
        num_heads=4,
        intermediate_size=48,
        max_tokens=64,
        dropout=dropout,
    )
    encoder = build_scratch_encoder(config, tokenizer, pooling=pooling, seed=seed)
    shake(encoder.backbone, seed=seed)
    return encoder


def hf_encoder(config, tokenizer, *, pooling="cls", seed=0):
    """Build an encoder of any family from its configuration."""
    torch.manual_seed(seed)
    if FAMILIES[config.model_type].kind == "encoder":
        backbone = AutoModelForMaskedLM.from_config(config).base_model
    else:
        backbone = new_backbone(config)
    shake(backbone, seed=seed)
    return SentenceEncoder(backbone, tokenizer, pooling=pooling, max_tokens=40)


def roberta_config(tokenizer):
    return RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=48,
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


SMALL = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}
EXTRAS = {
    "distilbert": {"dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 48},
    "electra": {"embedding_size": 16},
    "albert": {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2},
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 16},
    "roformer": {"embedding_size": 16},
    "eurobert": {"num_key_value_heads": 4},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0},
    "bart": {"d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4}
    | {"decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "dropout": 0.0},
    "llama": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8},
}


def family_config(model_type, tokenizer, **changes):
    """A tiny configuration of any supported family."""
    ids = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": None, "eos_token_id": None}
    ids |= {
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
        "mask_token_id": tokenizer.mask_token_id,
    }
    sizes = {
        **SMALL,
        **EXTRAS.get(model_type, {}),
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 64,
    }
    return AutoConfig.for_model(model_type, **sizes, **ids, **changes)


def gradients(model):
    grads = {name: param.grad.clone() for name, param in model.named_parameters() if param.requires_grad}
    model.zero_grad()
    return grads
