"""What the tests of the contrastive and supervised objectives share: labelled rows and their oracle."""

import core_builders
import numpy as np
import torch

from tsdae_core.examples import LabelledTexts
from tsdae_core.tokens import tokenize_texts


def labelled(texts, tokenizer, *, num_columns, labels=None):
    """Rows of ``num_columns`` texts each, taken one after the other."""
    count = len(texts) // num_columns
    columns = [
        tokenize_texts(texts[k * count : (k + 1) * count], tokenizer, max_tokens=64)
        for k in range(num_columns)
    ]
    return LabelledTexts(tuple(columns), None if labels is None else np.asarray(labels, dtype=np.float32))


def reference_of(encoder, folder):
    """The same encoder as a sentence-transformers model in train mode."""
    from sentence_transformers import SentenceTransformer  # seconds that spawned ranks need not spend

    encoder.save(folder)
    return SentenceTransformer(str(folder), device="cpu").train()


def features(texts, reference):
    return reference.preprocess(list(texts))


def assert_encoder_gradients_equal(model, reference, *, part="encoder", atol=1e-6):
    """Every backbone gradient of one of our encoders equals the reference's."""
    theirs = {
        name.split(".model.")[-1].split("auto_model.")[-1]: param.grad
        for name, param in reference.named_parameters()
    }
    compared = 0
    for name, param in getattr(model, part).backbone.named_parameters():
        if theirs.get(name) is None:
            assert float(param.grad.abs().max()) < 1e-6, name
            continue
        torch.testing.assert_close(
            param.grad, theirs[name], atol=atol, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
        compared += 1
    assert compared > 20


def dropout_free(tokenizer, pooling="mean"):
    return core_builders.bert_encoder(tokenizer, pooling=pooling, dropout=0.0)
