"""Vectors and rankings: plan, build, store, search, exact search, BM25, evaluation.

Works on arrays and plain files; knows nothing of torch, Ray, MLflow or training.
"""
