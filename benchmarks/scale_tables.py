"""Bytes, core-hours, GPU-hours and driver memory of every stage, by arithmetic from rates and assumptions.

Owns what is assumed, and says so in the tables. Must not know how a rate is measured.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

from scale_rates import DIM, GRAPH_LISTS, LAYERS, VOCAB, Rates

from indexing.plan import MAX_ROWS_FLAT_COARSE, MIN_LISTS_TRAINED_BY_GRAPH, IndexConfig, IndexPlan, plan_index

SIZES = (10**7, 10**8, 10**9)
_PAPER_SENTENCES = 800_000  # 100,000 steps of 8
_SHARD_BYTES = 64 << 20
_KMEANS_ITERATIONS = 10  # FAISS's for inverted lists
_SYSTEMS = 2  # the encoder before and after training


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """What no machine at hand could tell; every number of it stands in a table of its own.

    Attributes:
        gpu_peak_tflops: dense bfloat16 of an A100.
        train_share, encode_share: of that peak, what public reports give for larger models.
        small_model_share: of that peak, what small models in small batches reach.
        eval_queries: of the tasks, all of them together.
        core_hour, gpu_hour, gb_month: prices of the order that large providers list, nobody's offer.
    """

    gpu_peak_tflops: float = 312.0
    train_share: float = 0.42
    encode_share: float = 0.30
    small_model_share: float = 0.03
    eval_queries: float = 1_000
    core_hour: float = 0.05
    gpu_hour: float = 3.0
    gb_month: float = 0.025


_MEANING = {
    "gpu_peak_tflops": "A100, bfloat16, dense",
    "train_share": "of the peak, larger models, public reports",
    "encode_share": "of the peak, larger models, public reports",
    "small_model_share": "of the peak, small models in small batches",
    "eval_queries": "of all tasks together",
    "core_hour": "price, any currency",
    "gpu_hour": "price",
    "gb_month": "price of a GB stored for a month",
}


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """One row: bytes left (None = next to nothing), core-hours, floating point operations a GPU could do."""

    name: str
    written: float | None
    cores: float | None
    driver: float
    flops: float = 0.0
    good_share: float = 1.0


def render(rates: Rates, assumed: Assumed) -> str:
    """Measured rates, assumptions and stages as Markdown; equal input gives equal text."""
    lines = ["| measured on one core | value |", "|---|---|"]
    for field in fields(Rates):
        value = getattr(rates, field.name)
        lines.append(f"| {field.name} | {value if isinstance(value, str) else _number(value)} |")
    lines += ["", "| assumed, not measured | value | what it is |", "|---|---|---|"]
    lines += [f"| {name} | {_number(value)} | {_MEANING[name]} |" for name, value in asdict(assumed).items()]
    lines += [
        "",
        "| stage | rows | written | core-hours (measured rates) | GPU-hours (assumed) | driver memory "
        "| price, CPUs (assumed) | GPUs (assumed) | a month (assumed) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for num_rows in SIZES:
        lines += [_line(stage, num_rows, assumed) for stage in _stages(rates, assumed, num_rows)]
    return "\n".join(lines)


def _line(stage: _Stage, num_rows: int, assumed: Assumed) -> str:
    low = stage.flops / (assumed.gpu_peak_tflops * 1e12 * stage.good_share) / 3600
    high = stage.flops / (assumed.gpu_peak_tflops * 1e12 * assumed.small_model_share) / 3600
    cells = [
        stage.name,
        f"10^{round(math.log10(num_rows))}",
        "-" if stage.written is None else _bytes(stage.written),
        "-" if stage.cores is None else _number(stage.cores),
        _range(low, high) if stage.flops else "-",
        _bytes(stage.driver),
        "-" if stage.cores is None else _number(stage.cores * assumed.core_hour),
        _range(low * assumed.gpu_hour, high * assumed.gpu_hour) if stage.flops else "-",
        "-" if stage.written is None else _number(stage.written / 1e9 * assumed.gb_month),
    ]
    return f"| {' | '.join(cells)} |"


def _stages(rates: Rates, assumed: Assumed, num_rows: int) -> list[_Stage]:
    shards = max(8, 2 ** math.ceil(math.log2(max(1.0, num_rows * rates.input_bytes / _SHARD_BYTES))))
    driver = shards * rates.record_bytes
    encoder_bytes = 4 * (VOCAB * DIM + LAYERS * 12 * DIM**2)
    # Two checkpoints are kept: weights and two moments, the decoder's own modules on top; and the encoder.
    checkpoint = 2 * (3 * 1.5 + 1) * encoder_bytes
    train, encode = _train_flops(rates), _encode_flops(rates)
    embed = {
        "written": num_rows * rates.vectors_bytes,
        "cores": num_rows / rates.encode_sentences_per_s / 3600,
        "driver": driver,
        "flops": num_rows * encode,
        "good_share": assumed.encode_share,
    }
    return [
        _Stage(
            name="prepare",
            # The exchange files, removed at its end, and the corpus.
            written=2 * num_rows * rates.corpus_bytes,
            cores=num_rows / rates.prepare_rows_per_s / 3600,
            # Records of both passes, and an input file of a shard's size for each shard.
            driver=shards * (2 * rates.record_bytes + rates.input_file_bytes),
        ),
        _Stage(
            name="tokenize",
            written=num_rows * rates.tokens_bytes,
            cores=num_rows / rates.tokenize_rows_per_s / 3600,
            driver=driver,
        ),
        *(
            _Stage(
                name=name,
                written=checkpoint,
                cores=(count / rates.train_sentences_per_s + count / rates.noise_rows_per_s) / 3600,
                driver=driver,
                flops=count * train,
                good_share=assumed.train_share,
            )
            for name, count in (
                ("train, the paper's 800,000 sentences", _PAPER_SENTENCES),
                ("train, one pass", num_rows),
            )
        ),
        _Stage(name="embed", **embed),
        *_index_stages(rates, num_rows, driver),
        *_lookup_stages(rates, num_rows, driver),
        _Stage(name="evaluate, embed with the start", **embed),
        _Stage(
            name="evaluate, exact search in one task for each of 2 systems",
            written=None,
            cores=_SYSTEMS * _search_hours(rates, num_rows, assumed.eval_queries),
            driver=driver,
        ),
        _Stage(name="register", written=encoder_bytes, cores=None, driver=driver),
    ]


def _index_stages(rates: Rates, num_rows: int, driver: float) -> list[_Stage]:
    plan = plan_index(num_rows, DIM, IndexConfig())
    add_s = num_rows * (1 / rates.codes_add_rows_per_s + _nearest_list_s(rates, plan))
    # The sample is read first, the groups afterwards, where the query sample is searched exactly, too.
    sampling_h = num_rows / rates.vectors_read_rows_per_s / 3600
    filling_h = add_s / 3600 + _search_hours(rates, num_rows, 2 * IndexConfig().num_query_sample)
    return [
        _Stage(
            name="index, training in one task",
            written=None,
            cores=_index_train_s(rates, plan) / 3600,
            driver=driver,
        ),
        _Stage(
            name="index, filling",
            written=num_rows * plan.bytes_per_vector,
            cores=sampling_h + filling_h,
            driver=driver,
        ),
    ]


def _lookup_stages(rates: Rates, num_rows: int, driver: float) -> list[_Stage]:
    return [
        _Stage(
            name="lookup, texts and vectors",
            written=num_rows * (rates.lookup_texts_bytes + 2 * DIM),
            cores=num_rows * (1 / rates.lookup_texts_rows_per_s + 1 / rates.vectors_read_rows_per_s) / 3600,
            driver=driver,
        ),
        _Stage(
            name="lookup, words in one task",
            written=num_rows * rates.lookup_words_bytes,
            cores=num_rows / rates.lookup_words_rows_per_s / 3600,
            driver=driver,
        ),
    ]


def _nearest_list_s(rates: Rates, plan: IndexPlan) -> float:
    """Finding the list of a row: compared with all, or through a graph."""
    if plan.num_vectors <= MAX_ROWS_FLAT_COARSE:
        return plan.nlist / rates.comparisons_per_s
    return _deeper(plan.nlist) / rates.graph_rows_per_s


def _index_train_s(rates: Rates, plan: IndexPlan) -> float:
    """k-means of the lists, the graph over them at the end, and the tables of the codes."""
    rows, lists = plan.num_train_vectors, plan.nlist
    grow_s = lists * _deeper(lists) / rates.graph_grow_rows_per_s
    if lists < MIN_LISTS_TRAINED_BY_GRAPH:
        kmeans_s = _KMEANS_ITERATIONS * rows * lists / rates.comparisons_per_s
    else:
        kmeans_s = _KMEANS_ITERATIONS * (rows * _deeper(lists) / rates.graph_rows_per_s + grow_s)
    final_s = 0.0 if plan.num_vectors <= MAX_ROWS_FLAT_COARSE else grow_s
    return kmeans_s + final_s + rates.codes_train_s


def _deeper(lists: int) -> float:
    """Times what the measured graph takes: its work grows with the logarithm of the lists (assumed)."""
    return math.log2(lists) / math.log2(GRAPH_LISTS)


def _search_hours(rates: Rates, num_rows: int, num_queries: float) -> float:
    """Reading all vectors and scoring them for the queries."""
    read_s = num_rows / rates.vectors_read_rows_per_s
    return (read_s + num_rows * num_queries / rates.exact_scores_per_s) / 3600


def _encode_flops(rates: Rates) -> float:
    return 2 * LAYERS * 12 * DIM**2 * (rates.tokens_per_sentence + 2)


def _train_flops(rates: Rates) -> float:
    """Forward and backward of a step, per sentence: 40 % of the tokens encoded, all decoded and predicted."""
    tokens = rates.tokens_per_sentence
    body = 2 * LAYERS * 12 * DIM**2 * (0.4 * tokens + 2 + tokens + 1)
    return 3 * (body + 2 * VOCAB * DIM * (tokens + 1))


def _range(low: float, high: float) -> str:
    return f"{_number(low)} to {_number(high)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bytes(value: float) -> str:
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.3g} {unit}"
        value /= 1000
    raise AssertionError
