"""The papers keep pace with the code: links lead somewhere, examples load, every setting is explained."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

import pytest
import typer.main
import yaml

from indexing.bm25 import BM25Config
from indexing.word_vectors import STOPWORDS
from pipelines.cli.main import app
from pipelines.cluster import cpus_needed
from pipelines.config import RunConfig
from pipelines.config_io import config_of, load_config
from pipelines.labels_config import SUPERVISED
from pipelines.study.study_config import StudyConfig, SystemConfig
from pipelines.study.study_file import check_study, is_study
from tsdae_core.backbone import FAMILIES, REFUSED

ROOT = Path(__file__).parents[1]
PAPERS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")


def paper_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(text: str) -> set[str]:
    """The names under which a reader of Markdown can point at the headings of a text."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def keys(config_class: type) -> set[str]:
    """Every key of a configuration, sections included."""
    found: set[str] = set()
    for name, hint in typing.get_type_hints(config_class).items():
        found.add(name)
        for part in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(part):
                found |= keys(typing.cast(type, part))
    return found


def commands(command: typing.Any, prefix: str = "tsdae") -> list[str]:
    """Every command and subcommand as it is typed."""
    below = getattr(command, "commands", None)
    if below is None:
        return [prefix]
    return [name for key, child in below.items() for name in commands(child, f"{prefix} {key}")]


@pytest.mark.parametrize("paper", PAPERS, ids=paper_name)
def test_every_link_to_a_file_or_heading_leads_somewhere(paper: Path) -> None:
    text = paper.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    for link in links:
        place, _, heading = link.partition("#")
        target = paper.parent / place if place else paper
        assert target.exists(), link
        assert not heading or heading in anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("paper", PAPERS, ids=paper_name)
def test_every_yaml_example_is_a_valid_configuration(paper: Path, tmp_path: Path) -> None:
    for example in re.findall(r"```yaml\n(.*?)```", paper.read_text(encoding="utf-8"), re.DOTALL):
        (tmp_path / "example.yaml").write_text(example, encoding="utf-8")
        path = tmp_path / "example.yaml"
        check_study(path) if is_study(path) else load_config(path)


def test_the_guide_explains_every_key_of_the_configuration() -> None:
    prose = re.sub(r"```.*?```", "", GUIDE, flags=re.DOTALL)
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", prose))))
    assert keys(RunConfig) - named == set()


def test_the_paper_on_studies_explains_every_key_of_a_study() -> None:
    text = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    named = set(
        re.findall(
            r"\w+", " ".join(re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)))
        )
    )
    wanted = keys(StudyConfig) | keys(SystemConfig) | {"extends", "sizes", "variables"}
    assert wanted - named == set()


def test_the_guide_lists_every_command() -> None:
    missing = [name for name in commands(typer.main.get_command(app)) if f"`{name}" not in GUIDE]
    assert missing == []


def test_the_method_lists_every_family_of_backbones_under_its_path() -> None:
    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    paths = ("packed", "general", "refused")
    rows = {path: text.partition(f"| {path}")[2].partition("\n")[0] for path in paths}
    for name, family in FAMILIES.items():
        assert re.search(rf"\b{name}\b", rows["packed" if family.packed else "general"]), name
    assert [name for name in REFUSED if name not in rows["refused"]] == []
    assert f"{len(FAMILIES)} families" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_configuration_inside_the_kubernetes_example_is_valid(tmp_path: Path) -> None:
    text = (ROOT / "configs" / "cluster" / "rayjob.yaml").read_text(encoding="utf-8")
    config_map, job = yaml.safe_load_all(text)
    (tmp_path / "run.yaml").write_text(config_map["data"]["run.yaml"], encoding="utf-8")
    config = load_config(tmp_path / "run.yaml")
    assert job["spec"]["entrypoint"].endswith("/run.yaml")
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    num_cpus = workers["replicas"] * int(container["resources"]["limits"]["cpu"])
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"  # as docs/cluster.md advises
    assert num_cpus >= cpus_needed(config)


def test_the_paper_on_clusters_says_of_every_command_how_far_it_has_been_run() -> None:
    text = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    body, _, end = text.partition("## What has been run")
    told = set(
        re.findall(r"`([^`]+)`", " ".join(line.split("|")[1] for line in end.splitlines() if "|" in line))
    )
    shown = re.findall(
        r"^(?:```\n)?(\w[^`\n]*)$", "\n".join(re.findall(r"```\n(.*?)```", body, re.DOTALL)), re.MULTILINE
    )
    shown += re.findall(r"`((?:docker|kubectl|ray|tsdae) [^`]+)`", body)
    tools = ("tsdae", "ray", "mlflow", "python", "pip", "docker", "kubectl")
    used = [line for line in shown if line.split()[0] in tools]
    assert len(used) > 10
    assert [line for line in used if not any(line.startswith(command) for command in told)] == []


def test_the_cluster_example_is_what_ray_up_accepts() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    text = (ROOT / "configs" / "cluster" / "ray-cluster.yaml").read_text(encoding="utf-8")
    validate_config(prepare_config(yaml.safe_load(text)))


def test_the_tables_of_sizes_are_those_that_their_script_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from scale_rates import read_rates
    from scale_tables import Assumed, render

    tables = render(read_rates(ROOT / "docs" / "scale_rates.json"), Assumed())
    assert tables in (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")


def test_no_stage_is_cheaper_for_more_rows_and_all_that_is_assumed_is_called_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from scale_rates import read_rates
    from scale_tables import Assumed, render

    text = render(read_rates(ROOT / "docs" / "scale_rates.json"), Assumed())
    _, assumed, stages = text.split("\n\n")
    named = re.findall(r"^\| (\w+) \|", assumed, re.MULTILINE)
    assert named == [field.name for field in dataclasses.fields(Assumed)]
    titles = [cell.strip() for cell in stages.splitlines()[0].strip("|").split("|")]
    assert all("assumed" in title for title in titles if re.search("GPU|price|month", title))
    hours: dict[str, list[float]] = {}
    for line in stages.splitlines()[2:]:
        name, _, _, cores = (cell.strip() for cell in line.strip("|").split("|")[:4])
        hours.setdefault(name, []).append(0.0 if cores == "-" else float(cores.replace(",", "")))
    for name, found in hours.items():
        assert found == sorted(found), name
    wanted = ("prepare", "tokenize", "train", "embed", "index", "lookup", "evaluate", "register")
    assert [stage for stage in wanted if not any(name.startswith(stage) for name in hours)] == []


def test_the_paper_on_methods_states_the_settings_of_bm25_and_of_averaged_word_vectors() -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    config = BM25Config()
    assert f"k1 = {config.k1} and b = {config.b}" in text
    assert (config.stopwords, config.stemmer) == (None, None)
    assert "No stemmer, no stop words" in text
    assert f"{len(STOPWORDS)} English stop words" in text


def test_the_paper_on_methods_states_what_each_objective_takes_where_a_recipe_says_nothing() -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in text.partition("## Defaults")[2].splitlines() if "|" in line]
    table = {
        name: [cell.strip() for cell in row[1:]] for row in rows for name in re.findall(r"`(\w+)`", row[0])
    }
    for name in ("tsdae", "mlm", "ct", "simcse", "nli", "sts", "ranking", "pairs"):
        labels = {"labels": {"input": "x"}} if name in SUPERVISED else {}
        config = config_of({"train": {"objective": name, **labels}}, RunConfig)
        rate, batch, length, pooling, _ = table[name]
        optim = config.train.optim
        assert f"{optim.optimizer} {optim.lr:.0e}".replace("e-0", "e-") in rate.lower(), name
        assert all(f"{value:.0e}".replace("e-0", "e-") in rate for value in optim.rates), name
        assert (int(batch), pooling) == (config.train.batch_size, f"`{config.model.pooling}`"), name
        epochs = config.train.num_epochs
        assert length.startswith(f"{epochs} epoch" if epochs else f"{config.train.num_steps:,} steps"), name
        assert name not in ("ranking", "pairs") or f"{config.train.num_steps:,} steps" in length
