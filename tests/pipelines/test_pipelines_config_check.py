"""`tsdae config check`: every run configuration below a folder, and nothing else."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pipelines.cli.main import app

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


def test_leaves_the_yaml_of_other_tools_alone(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "rayjob.yaml").write_text(MANIFEST)
    (tmp_path / "cluster.yaml").write_text("seed: 1\n")
    result = check(tmp_path)
    assert result.exit_code == 0
    assert "cluster.yaml" in result.stdout
    assert "rayjob.yaml" not in result.stdout


@pytest.mark.parametrize("as_folder", [True, False], ids=["folder", "file"])
def test_what_is_named_outright_is_checked_wherever_it_lies(tmp_path: Path, as_folder: bool) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    (folder / "rayjob.yaml").write_text(MANIFEST)
    assert check(folder if as_folder else folder / "rayjob.yaml").exit_code == 2
