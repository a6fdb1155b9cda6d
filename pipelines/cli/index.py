"""The commands around the index: build it or show its plan, add, delete, compact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipelines.config import RunConfig
    from pipelines.progress import Reporter
    from pipelines.storage import Location

_CONFIG_HELP = "YAML file; the shipped ones are in configs/."
_OVERRIDES_HELP = "Settings that win over the file, as key.subkey=value."

_MERGING = {
    "in memory": "one file, merged in memory",
    "on disk": "one file, merged on disk, list by list",
    "shards": "a file for each group, searched together",
}

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help=_CONFIG_HELP, show_default=False)]
OptionalConfig = Annotated[
    str | None, typer.Argument(metavar="[CONFIG]", help=_CONFIG_HELP, show_default=False)
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help=_OVERRIDES_HELP, show_default=False)
]
IdsFile = Annotated[
    Path | None, typer.Option("--ids-file", help="A text file with one document id per line.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands to the application."""
    app.command()(index)
    app.command("index-add")(index_add)
    app.command("index-delete")(index_delete)
    app.command("index-compact")(index_compact)


def index(
    config: OptionalConfig = None,
    overrides: Overrides = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print what would be built, with reasons, and build nothing.")
    ] = False,
    rows: Annotated[
        str | None, typer.Option("--rows", help="With --plan: so many vectors, for instance 1e8.")
    ] = None,
    dim: Annotated[int | None, typer.Option("--dim", min=1, help="With --plan: of so many numbers.")] = None,
) -> None:
    """Build the FAISS index over the vectors and measure its recall, or show what would be built (--plan)."""
    from pipelines.config_io import load_config
    from pipelines.errors import InputError
    from pipelines.progress import Reporter
    from pipelines.run import run_stages

    settings = list(overrides or [])
    if config is not None and "=" in config:  # without a file the first setting stands in its place
        settings, config = [config, *settings], None
    if not plan:
        if config is None or rows is not None or dim is not None:
            raise InputError("give a CONFIG to build an index; --rows and --dim go with --plan")
        run_stages(["index"], load_config(config, settings), reporter=Reporter())
        return
    _print_plan(load_config(config, settings), rows, dim, has_config=config is not None)


def index_add(
    config: ConfigPath,
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A file, folder, glob or URL, as documents.input.")
    ],
    overrides: Overrides = None,
) -> None:
    """Add documents to the finished index without building it anew; known ids are replaced."""
    from pipelines.grow import add_documents

    _change(
        config,
        overrides,
        lambda run, place, reporter: add_documents(run, place, source, reporter=reporter),
    )


def index_delete(
    config: ConfigPath,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Document ids.", show_default=False)
    ] = None,
    ids_file: IdsFile = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help=f"{_OVERRIDES_HELP} May be given several times."),
    ] = None,
) -> None:
    """Delete documents from the finished index: they are not found any more."""
    from pipelines.errors import InputError
    from pipelines.grow import delete_documents

    wanted = list(ids or [])
    if ids_file is not None:
        if not ids_file.is_file():
            raise InputError(f"there is no file '{ids_file}'")
        wanted += [line for line in ids_file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not wanted:
        raise InputError("give document ids, or a file of them with --ids-file")
    _change(
        config,
        settings,
        lambda run, place, reporter: delete_documents(run, place, wanted, reporter=reporter),
    )


def index_compact(config: ConfigPath, overrides: Overrides = None) -> None:
    """Build the index anew: segments become one, deleted rows go, recall is measured again."""
    from pipelines.index_stage import build_index

    _change(
        config,
        overrides,
        lambda run, place, reporter: build_index(run, place, reporter=reporter, anew=True),
    )


def _change(
    path: Path,
    overrides: list[str] | None,
    work: Callable[[RunConfig, Location, Reporter], object],
) -> None:
    from pipelines.config_io import load_config
    from pipelines.lookup import build_lookup
    from pipelines.names import LOOKUP_FOLDER
    from pipelines.progress import Reporter
    from pipelines.run import run_alone

    def change(config: RunConfig, workspace: Location, reporter: Reporter) -> None:
        work(config, workspace, reporter)
        if (workspace / LOOKUP_FOLDER).exists():  # where texts, words and vectors are looked up by searching
            build_lookup(config, workspace, reporter=reporter)

    run_alone(change, load_config(path, overrides or []), reporter=Reporter())


def _print_plan(config: RunConfig, rows: str | None, dim: int | None, *, has_config: bool) -> None:
    from indexing.faiss_library import create_index
    from indexing.index_config import format_bytes
    from indexing.plan import plan_index
    from pipelines.errors import InputError
    from pipelines.index_layout import way_of_merging
    from pipelines.manifest import read_manifest
    from pipelines.storage import Location

    vectors = read_manifest(Location.parse(config.workspace) / "vectors") if has_config else None
    num_vectors = _number(rows) if rows is not None else vectors.counts["vectors"] if vectors else None
    width = dim or (vectors.counts["dim"] if vectors else None)
    if num_vectors is None or width is None:
        raise InputError("there are no vectors to count yet: give --rows and --dim")
    plan = plan_index(num_vectors, width, config.index)
    create_index(width, plan.factory)  # told now and not after an hour of embedding, if FAISS cannot
    console = Console(highlight=False, soft_wrap=True)
    lines = {
        "vectors": f"{num_vectors:,} of {width} numbers, {config.index.metric}",
        "factory": plan.factory,
        "training": f"{plan.num_train_vectors:,} vectors" if plan.num_train_vectors else "none",
        "lists": f"{plan.nlist:,}" if plan.nlist else "none",
        "memory": f"{format_bytes(num_vectors * plan.resident_bytes_per_vector)} "
        f"({plan.resident_bytes_per_vector:,} bytes a row) that every search reads",
        "storage": f"{format_bytes(num_vectors * plan.bytes_per_vector)} ({plan.bytes_per_vector:,} a row)",
        "tables": f"{format_bytes(plan.shared_bytes)} that all rows share, read by every search",
        "merging": _MERGING[way_of_merging(plan, config.index)],
        "search": f"the cheapest of {len(plan.search_params_grid)} settings that reaches recall@10 "
        f"{config.index.target_recall_at_10} on {config.index.num_query_sample} rows with confidence, then "
        "judged on as many others",
    }
    for name, text in lines.items():
        console.print(f"{name:9}{text}", markup=False)
    for reason in plan.reasons:
        console.print(f"  - {reason}", markup=False)


def _number(text: str) -> int:
    from pipelines.errors import InputError

    try:
        value = float(text.replace("_", "").replace(",", ""))
    except ValueError:
        value = 0.0
    if value < 1 or value != int(value):
        raise InputError(f"--rows must be a whole number of at least 1, such as 1e8, got '{text}'")
    return int(value)
