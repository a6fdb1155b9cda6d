"""Tiny random checkpoints under the names of published ones: of their family and class, in their layout."""

import torch
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoModelForSeq2SeqLM

from tests.pipelines.pseudo_label_builders import write_cross_encoder, write_generator
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
# What `labels.generate` takes where a recipe names nothing.
GENERATOR, CROSS_ENCODER = "BeIR/query-gen-msmarco-t5-base-v1", "cross-encoder/ms-marco-MiniLM-L-6-v2"
FAMILIES = {name: family for name, (family, _) in PLAIN.items()} | TUNED


def write_checkpoints(folder, tokenizer):
    """Writes all of them below a folder, so that their names are paths there."""
    for seed, (name, (family, auto)) in enumerate(PLAIN.items()):
        torch.manual_seed(seed)
        auto.from_config(family_config(family, tokenizer)).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    write_generator(folder / GENERATOR, tokenizer)
    write_cross_encoder(folder / CROSS_ENCODER, tokenizer)
    for name, family in TUNED.items():
        hf_encoder(family_config(family, tokenizer), tokenizer, pooling="mean").save(folder / name)
