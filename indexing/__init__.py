"""Vectors and rankings: plan, build, store, search, exact search, BM25, evaluation.

Works on arrays and plain files; knows nothing of torch, Ray, MLflow or training.

    arrays          checks of ids and vectors at the border
    hits            ranked hits, the tie rule, merging, recall
    vectors         the vectors file of a corpus shard (Parquet)
    exact           exact search, the oracle; normalising
    index_config    what the user wants from the index
    factory_string  what a FAISS factory string says: lists, graph, bytes of a row
    plan            size of the corpus -> FAISS factory, training sample, search settings to try
    build           train, add, merge
    tune, recall    search settings for the target, recall of held-out queries with its interval
    stack           one or more FAISS indexes searched as one under the tie rule, deleted rows
    search          an opened index: exact re-scoring with full vectors, selections of rows
    vector_files    full vectors by row id from memory maps
    index_metadata  what one must know to search an index, its file
    store           the index folder, its versions, opening it, the encoder check
    faiss_library   the only file that touches FAISS
    bm25, fusion    lexical search and rank fusion, same hits
    filters         conditions on document columns
    corpus_map      a sample on a plane, as SVG
    evaluation/     tasks, runs, measures, significance, report
"""
