"""Tasks, measures, per-query scores and the report made from them."""
