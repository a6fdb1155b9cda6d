"""What only a cluster can show: shards and streams on Ray give what the same code gives without it."""

import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pipeline_builders import make_tokens, quiet_reporter, random_rows, write_rows, write_token_shards
from ray.exceptions import RayError

from pipelines.collection_config import CollectionConfig
from pipelines.errors import InputError
from pipelines.lanes import LanePlan
from pipelines.manifest import ShardRecord, StageFolder
from pipelines.noise_epoch import write_plan
from pipelines.prepare import prepare
from pipelines.progress_board import _READ_TIMEOUT_S, followed, new_board
from pipelines.shards import run_shards
from pipelines.storage import Location
from pipelines.stream import BatchStream, StreamSpec
from tests.pipelines.shard_builders import run_shards_here
from tsdae_core.objective import build_objective
from tsdae_core.scratch import train_tokenizer
from tsdae_core.tsdae import TsdaeConfig

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def stage(tmp_path):
    made = StageFolder(Location.parse(tmp_path / "stage"), stage="test", config={}, inputs={})
    made.begin()
    return made


def run_items(stage, items, work, **options):
    reporter, written = quiet_reporter()
    records = run_shards(stage, "g", items, work, reporter=reporter, label="items", **options)
    return records, written.getvalue()


def test_every_item_is_worked_on_once_and_the_finished_ones_not_again(stage, tmp_path):
    trace = tmp_path / "trace"
    trace.mkdir()

    def make():
        def work(name, spec):
            with (trace / name).open("a") as file:
                file.write("x")
            if name == "c" and spec["fail"]:
                raise RuntimeError("a defect")
            return ShardRecord(name=name, num_rows=spec["rows"], digest="d", counts={"n": spec["rows"]})

        return work

    items = {name: {"rows": i, "fail": True} for i, name in enumerate("dcba")}
    with pytest.raises(RayError, match="a defect"):
        run_items(stage, items, make)
    finished = stage.receipts("g")
    assert "c" not in finished
    for spec in items.values():
        spec["fail"] = False
    records, note = run_items(stage, items, make)
    assert [(record.name, record.num_rows) for record in records] == [("a", 3), ("b", 2), ("c", 1), ("d", 0)]
    assert stage.receipts("g") == {record.name: record for record in records}
    assert "items: 4/4 shards" in note
    worked = {path.name: len(path.read_text()) for path in trace.iterdir()}
    assert all(worked[name] == 1 for name in finished)
    again, _ = run_items(stage, items, make)
    assert again == records
    assert {path.name: len(path.read_text()) for path in trace.iterdir()} == worked


def test_actors_make_their_function_once_and_the_user_s_error_comes_through(stage, tmp_path):
    trace = tmp_path / "made"

    def make():
        with trace.open("a") as file:
            file.write("x")

        def work(name, spec):
            if spec["bad"]:
                raise InputError(f"row 7 of {name} is bad")
            return ShardRecord(name=name, num_rows=10, digest="d")

        return work

    items = {f"item-{i}": {"bad": False} for i in range(5)}
    records, note = run_items(stage, items, make, num_actors=1, total_units=50, unit="texts")
    assert len(records) == 5
    assert trace.read_text() == "x"
    assert "50/50 texts" in note
    with pytest.raises(InputError, match=r"^row 7 of item-9 is bad$"):
        run_items(stage, {"item-9": {"bad": True}}, make)


def test_a_user_error_while_an_actor_is_made_is_that_error(stage):
    def make():
        raise InputError("the encoder of start/ cannot be loaded")

    for num_actors in (0, 1):
        with pytest.raises(InputError, match=r"^the encoder of start/ cannot be loaded$"):
            run_items(stage, {"a": {}, "b": {}}, make, num_actors=num_actors)


def test_an_error_stops_the_work_that_has_not_begun(stage, tmp_path):
    def make():
        def work(name, spec):
            if name == "item-00":
                raise InputError("bad")
            time.sleep(0.1)
            (tmp_path / name).touch()
            return ShardRecord(name=name, num_rows=1, digest="d")

        return work

    with pytest.raises(InputError) as caught:
        run_items(stage, {f"item-{i:02d}": {} for i in range(80)}, make)
    at_once = len(list(tmp_path.glob("item-*")))
    time.sleep(2.0)
    assert len(list(tmp_path.glob("item-*"))) <= at_once + 4  # one per CPU may have been under way
    assert str(caught.value) == "bad"  # until here, the error held on to its traceback


@pytest.fixture
def mixed_input(tmp_path):
    rows = [(str(i), f"sentence {i % 70} of the corpus") for i in range(100)] + [("x", None), ("y", " ")]
    for number, ending in enumerate(["jsonl", "csv.gz", "parquet"]):
        write_rows(tmp_path / f"in/{number}.{ending}", rows[number::3])
    return tmp_path / "in"


def prepare_in(workspace, source, **settings):
    reporter, written = quiet_reporter()
    config = CollectionConfig(input=str(source), id_column="id", num_shards=3, **settings)
    manifest = prepare("corpus", config, Location.parse(workspace), reporter=reporter)
    return manifest, written.getvalue()


def test_prepare_on_ray_gives_the_bytes_of_prepare_without_it(tmp_path, mixed_input, monkeypatch):
    on_ray, note = prepare_in(tmp_path / "ray", mixed_input)
    assert "corpus read: 1/1 shards" in note
    assert "corpus de-duplicate: 3/3 shards" in note
    assert (on_ray.counts["rows_read"], on_ray.counts["rows_kept"]) == (102, 70)
    _, again = prepare_in(tmp_path / "ray", mixed_input)
    assert again == "corpus: up to date, 70 rows\n"
    monkeypatch.setattr("pipelines.prepare.run_shards", run_shards_here)
    here, _ = prepare_in(tmp_path / "here", mixed_input)
    assert (here.digest, here.shards) == (on_ray.digest, on_ray.shards)


def test_a_bad_file_found_by_a_task_is_one_error_and_leaves_no_output(tmp_path, mixed_input):
    (mixed_input / "3.jsonl").write_bytes(b'{"id": "1", "text": "caf\xe9"}\n')
    with pytest.raises(InputError, match=r"3\.jsonl' holds no JSON object; line 1 .* not valid UTF-8"):
        prepare_in(tmp_path / "w", mixed_input)
    assert not Path(tmp_path / "w/corpus").exists()


NUM_ROWS, BATCH, LANES, STEPS = 17_000, 1_024, 4, 22


def tsdae(**settings):
    texts = ["the cat sat on the mat", "a dog barked at the old cat"] * 4
    config = TsdaeConfig(**settings)
    return build_objective("tsdae", tokenizer=train_tokenizer(texts, vocab_size=60), config=config)


@pytest.fixture(scope="module")
def objective():
    return tsdae()


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Uneven shards; one lane is longer than a block, so that a worker's stream is made by several tasks."""
    tokens, row_ids = make_tokens(random_rows(NUM_ROWS, longest=6)), np.arange(NUM_ROWS) * 5 + 2
    parts = [np.arange(0, 9_000), np.arange(9_000, 9_001), np.arange(9_001, NUM_ROWS)]
    folder = Location.parse(tmp_path_factory.mktemp("tokens"))
    return write_token_shards(folder, [(row_ids[part], tokens.take(part)) for part in parts])


def global_steps(plan, rows, objective, *, workers, num_steps, first_step=0):
    """Noised bytes of every row of every step, all workers together; every worker must show every step."""
    merged = {step: {} for step in range(first_step, num_steps)}
    for rank in range(workers):
        seen = []
        spec = StreamSpec(
            plan=plan,
            rows=rows,
            objective=objective,
            rank=rank,
            world_size=workers,
            first_step=first_step,
            num_steps=num_steps,
            max_batch_tokens=900,
        )
        for step in BatchStream(spec):
            seen.append(step.step)
            found = {}
            for batch in step.micro_batches:
                ends = np.cumsum(batch["source_lengths"])
                starts = ends - batch["source_lengths"]
                for row_id, start, end in zip(batch["row_ids"].tolist(), starts, ends, strict=True):
                    found[row_id] = batch["source_ids"][start:end].tobytes()
            assert sorted(found) == sorted(step.row_ids.tolist())
            assert not found.keys() & merged[step.step].keys()
            merged[step.step] |= found
        assert seen == list(range(first_step, num_steps))
    return merged


def test_one_two_and_four_workers_see_the_same_global_batches_and_noise_also_resumed(rows, objective):
    plan = LanePlan(num_rows=NUM_ROWS, batch_size=BATCH, num_lanes=LANES, seed=11)
    assert STEPS > plan.steps_per_epoch > plan.steps_per_chunk
    alone = global_steps(plan, rows, objective, workers=1, num_steps=STEPS)
    epoch = [row for step in range(plan.steps_per_epoch) for row in alone[step]]
    assert sorted(epoch) == (np.arange(NUM_ROWS) * 5 + 2).tolist()
    assert global_steps(plan, rows, objective, workers=2, num_steps=STEPS) == alone
    assert global_steps(plan, rows, objective, workers=4, num_steps=STEPS) == alone
    tail = {step: found for step, found in alone.items() if step >= 13}
    assert global_steps(plan, rows, objective, workers=2, num_steps=STEPS, first_step=13) == tail


def test_a_corpus_smaller_than_the_lanes_gives_every_worker_every_step(tmp_path, objective):
    tokens, row_ids = make_tokens([[7, 8, 9], [10], [11, 12]]), np.array([3, 5, 8])
    tiny = write_token_shards(Location.parse(tmp_path), [(row_ids, tokens)])
    plan = LanePlan(num_rows=3, batch_size=8, num_lanes=4, seed=0)
    alone = global_steps(plan, tiny, objective, workers=1, num_steps=4)
    assert [sorted(found) for found in alone.values()] == [[3, 5, 8]] * 4
    assert global_steps(plan, tiny, objective, workers=4, num_steps=4) == alone


def test_the_stream_of_a_finished_run_is_empty(rows, objective):
    plan = LanePlan(num_rows=NUM_ROWS, batch_size=BATCH, num_lanes=LANES, seed=11)
    assert global_steps(plan, rows, objective, workers=1, num_steps=5, first_step=5) == {}


# Two lanes of more than a block, so that an epoch is more than one task's work.
EPOCH_ROWS = 9_000


def stream_rows(plan, rows, objective, *, epoch, workers):
    """What the workers' streams hold of an epoch: (step, row id) -> the bytes of each array."""
    found = {}
    first = epoch * plan.steps_per_epoch
    for rank in range(workers):
        spec = StreamSpec(
            plan=plan,
            rows=rows,
            objective=objective,
            rank=rank,
            world_size=workers,
            first_step=first,
            num_steps=first + plan.steps_per_epoch,
            max_batch_tokens=900,
        )
        for step in BatchStream(spec):
            for batch in step.micro_batches:
                for name, lengths in (("source", "source"), ("target", "target"), ("decoder", "target")):
                    parts = np.split(batch[f"{name}_ids"], np.cumsum(batch[f"{lengths}_lengths"])[:-1])
                    for row_id, ids in zip(batch["row_ids"].tolist(), parts, strict=True):
                        found.setdefault((step.step, row_id), {})[f"{name}_ids"] = ids.tobytes()
    return found


def test_an_epoch_on_disk_is_byte_for_byte_the_stream_into_two_workers(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.noise_epoch.run_shards", run_shards_here)
    objective = tsdae(decoder_mask_ratio=0.3)
    row_ids = np.arange(EPOCH_ROWS) * 3 + 1
    rows = write_token_shards(
        Location.parse(tmp_path / "tokens"), [(row_ids, make_tokens(random_rows(EPOCH_ROWS)))]
    )
    plan = LanePlan(num_rows=EPOCH_ROWS, batch_size=1_024, num_lanes=2, seed=5)
    reporter, note = quiet_reporter()
    output = Location.parse(tmp_path / "epoch")

    def write():
        return write_plan(
            *(plan, rows, objective, output), epoch=2, inputs={"tokens": "x"}, settings={}, reporter=reporter
        )

    manifest = write()
    assert manifest.counts == {"sentences": EPOCH_ROWS, "steps": plan.steps_per_epoch}
    assert len(manifest.shards) == 2
    written, order = {}, []
    for path in sorted((tmp_path / "epoch").glob("part-*.parquet")):
        for row in pq.read_table(path).to_pylist():
            key = (row.pop("step"), row.pop("row_id"))
            order.append(key)
            written[key] = {name: np.asarray(ids, np.int32).tobytes() for name, ids in row.items()}
    assert [step for step, _ in order] == sorted(step for step, _ in order)
    assert written == stream_rows(plan, rows, objective, epoch=2, workers=2)
    assert {row_id for _, row_id in written} == set(row_ids.tolist())
    assert write() == manifest
    assert "noise: up to date, 9,000 sentences" in note.getvalue()


def test_the_progress_board_shows_the_last_state_and_a_lost_board_fails_nothing():
    import ray

    reporter, written = quiet_reporter()
    board = new_board()
    with reporter.track("train", total=10, unit="steps") as tracker, followed(board, tracker):
        ray.get(board.write.remote({"first_step": 2, "step": 7, "note": "loss 1.5"}))
    assert "train: 7/10 steps" in written.getvalue()
    assert "loss 1.5" in written.getvalue()
    with reporter.track("train", total=10, unit="steps") as tracker, followed(board, tracker):
        ray.kill(board)
    assert written.getvalue().splitlines()[-1].startswith("  train: 0/10 steps")
    assert _READ_TIMEOUT_S <= 30
