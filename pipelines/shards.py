"""Running one function per shard on Ray Data, skipping what an interrupted run already finished.

A work item has a name and produces one output file and one receipt; the driver holds names and receipts
only, never rows.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeAlias, cast

import pyarrow as pa
import ray
import ray.data
from ray.exceptions import RayError

from pipelines.errors import InputError
from pipelines.manifest import ShardRecord, StageFolder, write_receipt
from pipelines.names import shard_name
from pipelines.progress import Reporter
from pipelines.storage import Location

# A Ray Data block per item up to this many; beyond it, blocks of several items keep the driver's list small.
_MAX_BLOCKS = 5_000


@dataclass(frozen=True)
class _Item:
    """What travels to a task, pickled: our own objects inside our own cluster."""

    name: str
    receipt: Location
    spec: Mapping[str, Any]


ShardFunction: TypeAlias = Callable[[str, Mapping[str, Any]], ShardRecord]


def run_shards(
    stage: StageFolder,
    group: str,
    items: Mapping[str, Mapping[str, Any]],
    work: Callable[[], ShardFunction],
    *,
    reporter: Reporter,
    label: str,
    unit: str = "rows",
    resources: Mapping[str, float] | None = None,
    num_actors: int = 0,
    total_units: int | None = None,
) -> list[ShardRecord]:
    """Applies the function that `work()` makes to every item and returns all receipts, sorted by item.

    items: by name, what the function needs to know (plain, picklable values).
    num_actors: 0 runs tasks; more runs that many actors, each calling `work()` once (to load a model).
    total_units: what the progress counts to; None counts shards.

    Raises:
        InputError: making the function or calling it raised ValueError; the message is the same.
    """
    done = stage.receipts(group)
    todo = [name for name in items if name not in done]
    total = len(items) if total_units is None else total_units

    def size(record: ShardRecord) -> int:
        return 1 if total_units is None else record.num_rows

    with reporter.track(label, total=total, unit="shards" if total_units is None else unit) as tracker:
        tracker.resume_at(sum(size(record) for record in done.values()))
        todo_items = {name: items[name] for name in todo}
        for name, record in _execute(
            stage, group, todo_items, work, resources=resources or {}, actors=num_actors
        ):
            done[name] = record
            tracker.advance(size(record))
    assert set(done) >= set(items)
    return [done[name] for name in sorted(items)]


class ShardRunner(Protocol):
    """What applies a function to shards: `run_shards` or `run_shards_here`."""

    def __call__(  # noqa: D102 - told at `run_shards`
        self,
        stage: StageFolder,
        group: str,
        items: Mapping[str, Mapping[str, Any]],
        work: Callable[[], ShardFunction],
        *,
        reporter: Reporter,
        label: str,
        unit: str = "rows",
        resources: Mapping[str, float] | None = None,
        num_actors: int = 0,
        total_units: int | None = None,
    ) -> list[ShardRecord]: ...


def run_shards_here(
    stage: StageFolder,
    group: str,
    items: Mapping[str, Mapping[str, Any]],
    work: Callable[[], ShardFunction],
    **_options: Any,
) -> list[ShardRecord]:
    """As `run_shards`, one item after the other in this process: for callers that are Ray tasks."""
    done = stage.receipts(group)
    todo = [name for name in items if name not in done]
    if todo:
        function = work()
        for name in todo:
            done[name] = function(name, items[name])
            write_receipt(stage.receipt_place(group, name), done[name])
    return [done[name] for name in sorted(items)]


def _execute(
    stage: StageFolder,
    group: str,
    items: Mapping[str, Mapping[str, Any]],
    work: Callable[[], ShardFunction],
    *,
    resources: Mapping[str, float],
    actors: int,
) -> Iterator[tuple[str, ShardRecord]]:
    if not items:
        return
    places = {name: stage.receipt_place(group, name) for name in items}
    rows = [{"item": pickle.dumps(_Item(name, places[name], dict(spec)))} for name, spec in items.items()]
    options: dict[str, Any] = {"num_cpus": resources.get("cpus", 1.0)}
    if resources.get("gpus"):
        options["num_gpus"] = resources["gpus"]
    if actors:
        options["compute"] = ray.data.ActorPoolStrategy(size=actors)
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    with ray.data.DataContext.current(context):
        items_dataset = ray.data.from_items(rows, override_num_blocks=min(len(rows), _MAX_BLOCKS))
        if actors:
            dataset = items_dataset.map(cast(Any, _ShardActor), fn_constructor_args=(work,), **options)
        else:
            dataset = items_dataset.map(_ShardTask(work), **options)
        results = iter(dataset.iter_rows())
        try:
            for row in results:
                if row["user_error"]:
                    raise InputError(row["user_error"])
                yield row["name"], ShardRecord(**json.loads(row["record"]))
        except RayError as error:
            raise user_error_in(error) or error from error
        finally:
            del results  # stops what is still at work; a traceback would keep it going


class _ShardTask:
    """The function that Ray Data tasks call; pickled with what makes the work."""

    def __init__(self, work: Callable[[], ShardFunction]):
        self._work = work

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        function, error = _made(self._work)
        return _answer(error) if function is None else _finish(row, function)


class _ShardActor:
    """Makes the work once; what the user has to mend is the answer to every item, not the actor's death."""

    def __init__(self, work: Callable[[], ShardFunction]):
        self._function, self._error = _made(work)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return _answer(self._error) if self._function is None else _finish(row, self._function)


def _made(work: Callable[[], ShardFunction]) -> tuple[ShardFunction | None, str]:
    """The function, or the user's error that kept it from being made."""
    try:
        return work(), ""
    except ValueError as error:
        if isinstance(error, pa.ArrowException):
            raise
        return None, str(error)


def _answer(user_error: str, name: str = "", record: str = "") -> dict[str, Any]:
    return {"name": name, "record": record, "user_error": user_error}


def _finish(row: dict[str, Any], function: ShardFunction) -> dict[str, Any]:
    """Does one item; a user's error travels as a result, as Ray Data keeps only the text of an exception."""
    item: _Item = pickle.loads(row["item"])
    try:
        record = function(item.name, item.spec)
    except ValueError as error:
        if isinstance(error, pa.ArrowException):  # a defect of ours; readers name the file of a bad one
            raise
        return _answer(str(error), item.name)
    write_receipt(item.receipt, record)
    return _answer("", item.name, json.dumps(asdict(record)))


def start_task(function: Callable[..., Any], *arguments: Any, cpus: float = 1.0, gpus: float = 0.0) -> Any:
    """Starts one function as a Ray task; its result comes from `finish_task`, or goes into another task."""
    remote: Any = ray.remote(num_cpus=cpus, num_gpus=gpus)(cast(Any, function))
    return remote.remote(*arguments)


def finish_task(started: Any) -> Any:
    """What a task returned.

    Raises:
        ValueError: the task raised it for the user.
    """
    try:
        return ray.get(started)
    except RayError as error:
        raise user_error_in(error) or error from error


def user_error_in(error: BaseException) -> ValueError | None:
    """The ValueError that a task raised for the user, dug out of Ray's wrapping; None for our own defects."""
    seen: set[int] = set()
    stack: list[BaseException | None] = [error]
    while stack:
        current = stack.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, ValueError) and not isinstance(current, RayError):
            return current
        failures = getattr(current, "worker_failures", {})  # Ray Train: exceptions by rank
        stack += [*failures.values(), getattr(current, "cause", None), current.__cause__, current.__context__]
    return None


def names(count: int) -> Sequence[str]:
    """The names of `count` shards."""
    return [shard_name(number) for number in range(count)]


def sum_drops(records: Sequence[ShardRecord]) -> dict[str, int]:
    """The counts `dropped_...` of all records, by reason."""
    total: dict[str, int] = {}
    for record in records:
        for key, value in record.counts.items():
            if key.startswith("dropped_"):
                total[key] = total.get(key, 0) + value
    return dict(sorted(total.items()))
