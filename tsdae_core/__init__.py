"""The learning method: noise, batches, encoder, bottleneck decoder, objectives, one step, checkpoint.

Knows torch, transformers, tokenizers and numpy; nothing of Ray, MLflow, FAISS or the other rooms.
"""
