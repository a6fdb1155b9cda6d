"""Tiny random checkpoints under the names of published ones: of their family and class, in their layout."""

import torch
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoModelForSeq2SeqLM

from tests.tsdae_core.core_builders import family_config, hf_encoder

# Family and class; electra's has no language-model head.
PLAIN = {
    "bert-base-uncased": ("bert", AutoModelForMaskedLM),
    "distilbert-base-uncased": ("distilbert", AutoModelForMaskedLM),
    "roberta-base": ("roberta", AutoModelForMaskedLM),
    "distilroberta-base": ("roberta", AutoModelForMaskedLM),
    "google/electra-base-discriminator": ("electra", AutoModelForPreTraining),
    "t5-base": ("t5", AutoModelForSeq2SeqLM),
    "facebook/bart-base": ("bart", AutoModelForSeq2SeqLM),
}
TUNED = {"sentence-transformers/all-MiniLM-L6-v2": "bert"}
FAMILIES = {name: family for name, (family, _) in PLAIN.items()} | TUNED


def write_checkpoints(folder, tokenizer):
    """Writes all of them below a folder, so that their names are paths there."""
    for seed, (name, (family, auto)) in enumerate(PLAIN.items()):
        torch.manual_seed(seed)
        auto.from_config(family_config(family, tokenizer)).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    for name, family in TUNED.items():
        hf_encoder(family_config(family, tokenizer), tokenizer, pooling="mean").save(folder / name)
