"""`tsdae config check`: every run configuration below a folder, and nothing else."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pipelines.cli.main import app

CONFIGS = Path(__file__).parents[2] / "configs"
MANIFEST = "apiVersion: ray.io/v1\nkind: RayJob\n"


def check(*paths: Path) -> Result:
    return CliRunner().invoke(app, ["config", "check", *map(str, paths)])


def test_checks_every_configuration_below_a_folder(tmp_path: Path) -> None:
    for name in ("a.yaml", "deep/down/b.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("seed: 1\n")
    (tmp_path / "deep" / "bad.yaml").write_text("train: {num_wokers: 2}\n")
    result = check(tmp_path)
    assert result.exit_code == 2
    assert result.stdout.count("ok    ") == 2
    assert "unknown configuration key 'train.num_wokers'" in result.stdout


def test_tells_what_a_configuration_trains_by_the_values_in_force(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("train: {objective: simcse, batch_size: 64}\n")
    (tmp_path / "b.yaml").write_text("phases: [{name: a, train: {objective: ct}}, {name: b}]\n")
    systems = "evaluate: {tasks: [{name: a, folder: b}], systems: [{name: c, kind: bm25}]}\n"
    (tmp_path / "c.yaml").write_text(systems)
    pairs = "train: {objective: pairs, labels: {input: a}}\n"
    (tmp_path / "d.yaml").write_text(pairs)
    told = [line.partition(" (")[2] for line in check(tmp_path).stdout.splitlines()]
    assert told == [
        "cls pooling; simcse: adamw 5e-05 constant, batches of 64, 1 epoch, at most 100,000 steps)",
        "cls pooling; ct: rmsprop 1e-05 piecewise, batches of 16, 100,000 steps; "
        "tsdae: adamw 3e-05 constant, batches of 8, 100,000 steps)",
        "1 systems, nothing is trained)",
        "mean pooling; pairs: adamw 2e-05 linear, batches of 64, 10 epochs, at most 20,000 steps, or stopped "
        "early)",
    ]


@pytest.mark.parametrize("manifest", [MANIFEST, "cluster_name: mine\nmax_workers: 2\n"])
def test_leaves_the_yaml_of_other_tools_alone_and_checks_what_lies_beside_it(
    tmp_path: Path, manifest: str
) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "other.yaml").write_text(manifest)
    (tmp_path / "cluster" / "mine.yaml").write_text("seed: 1\ncluster: {num_cpus: 2}\n")
    (tmp_path / "cluster.yaml").write_text("seed: 1\n")
    result = check(tmp_path)
    assert result.exit_code == 0
    assert result.stdout.count("ok    ") == 2
    assert "mine.yaml" in result.stdout
    assert "other.yaml" not in result.stdout


def test_a_file_that_is_named_outright_is_checked_whatever_it_is(tmp_path: Path) -> None:
    (tmp_path / "rayjob.yaml").write_text(MANIFEST)
    assert check(tmp_path / "rayjob.yaml").exit_code == 2


def test_every_shipped_configuration_is_valid_that_for_object_storage_too() -> None:
    result = check(CONFIGS)
    assert result.exit_code == 0, result.stdout
    assert "cluster/object-storage.yaml" in result.stdout
    assert "rayjob.yaml" not in result.stdout
    assert "ray-cluster.yaml" not in result.stdout
