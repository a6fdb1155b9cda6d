"""Tiny random models for pseudo-labels: one that writes queries, one that scores pairs."""

import torch
from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from tests.tsdae_core.core_builders import family_config


def write_generator(folder, tokenizer, *, seed=0):
    """A T5 that writes pieces of its vocabulary until it is stopped."""
    torch.manual_seed(seed)
    model = AutoModelForSeq2SeqLM.from_config(family_config("t5", tokenizer))
    model.generation_config.decoder_start_token_id = tokenizer.pad_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_cross_encoder(folder, tokenizer, *, seed=0, num_labels=1):
    """A BERT with so many outputs for a pair, which differ much from pair to pair."""
    torch.manual_seed(seed)
    config = family_config("bert", tokenizer, num_labels=num_labels, initializer_range=0.5)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
