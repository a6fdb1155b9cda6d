"""Aliases of a real registry: when they move, when they stay, and the way back."""

import json
import sys
from pathlib import Path

import pytest
from pipeline_builders import quiet_reporter

import pipelines.cli.main as cli
from indexing.evaluation.rows import PerQueryRow, write_rows
from pipelines.config import RegisterConfig, RunConfig, TrackingConfig
from pipelines.errors import InputError
from pipelines.promote import promote, roll_back
from pipelines.promote_config import PromoteConfig
from pipelines.register import DESCRIPTION_FILE, EVALUATION_TAG
from pipelines.registry import Registry
from pipelines.report_files import ROWS_FILE
from pipelines.storage import Location
from pipelines.tracking import Tracker

NUM_QUERIES = 40


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return Location.parse(tmp_path_factory.mktemp("promote") / "work")


class Shop:
    """One registered model with versions whose values the test chooses; no weights, only the registry."""

    def __init__(self, workspace, folder, name, **gate):
        self.workspace, self.folder = workspace, folder
        self.config = RunConfig(
            workspace=str(workspace), register=RegisterConfig(name=name), promote=PromoteConfig(**gate)
        )
        self.registry = Registry(Tracker.of(self.config, workspace), name)
        self.client = self.registry.tracker.client()
        self.client.create_registered_model(name)

    def add(self, value, *, start=0.1, task="t", fingerprint="f"):
        """A version with the same value for every query, at the alias `candidate`; its number."""
        tracker, name = self.registry.tracker, self.registry.name
        run = tracker.open_run(name, fingerprint=f"{name} {value} {task} {fingerprint}", params={})
        systems = {"trained": value, "start": start}
        rows = [
            PerQueryRow(system, task, f"q{i}", "ndcg_at_10", level)
            for system, level in systems.items()
            for i in range(NUM_QUERIES)
        ]
        write_rows(Location.parse(self.folder).filesystem, str(self.folder / ROWS_FILE), rows)
        described = {"tasks": {task: fingerprint}, "system": "trained", "start_system": "start"}
        (self.folder / DESCRIPTION_FILE).write_text(json.dumps(described))
        for file in (ROWS_FILE, DESCRIPTION_FILE):
            tracker.log_file(run, self.folder / file, folder="evaluation/x")
        made = self.client.create_model_version(name, source=str(self.folder), run_id=run)
        self.registry.set_tags(made.version, {EVALUATION_TAG: "evaluation/x"})
        self.registry.point("candidate", str(made.version))
        return str(made.version)

    def promote(self, **options):
        reporter, written = quiet_reporter()
        return promote(self.config, self.workspace, reporter=reporter, **options), written.getvalue()

    def roll_back(self):
        reporter, written = quiet_reporter()
        roll_back(self.config, self.workspace, reporter=reporter)
        return written.getvalue()

    def aliases(self):
        found = {alias: self.registry.at(alias) for alias in ("champion", "previous")}
        return {alias: version.number for alias, version in found.items() if version}


@pytest.fixture
def shop(workspace, tmp_path, request):
    def open_shop(**gate):
        return Shop(workspace, tmp_path, request.node.name, **gate)

    return open_shop


def test_the_first_champion_is_compared_with_its_start_then_each_with_the_last_and_rollback_swaps(shop):
    shop = shop()
    first = shop.add(0.4)
    result, written = shop.promote()
    assert result.done
    assert "0.4000 against 0.1000 of the start of version 1" in written
    assert shop.aliases() == {"champion": first}
    with pytest.raises(InputError, match="no version with the alias 'previous'"):
        shop.roll_back()
    second = shop.add(0.6)
    assert "0.6000 against 0.4000 of version 1" in shop.promote()[1]
    assert shop.aliases() == {"champion": second, "previous": first}
    assert (
        shop.registry.version(second).tags["tsdae.promotion"].startswith("promoted over version 1: gain +0.2")
    )
    assert f"version {first} is champion again" in shop.roll_back()
    assert shop.aliases() == {"champion": first, "previous": second}
    assert shop.registry.version(second).tags["tsdae.promotion"] == "rolled back to version 1"
    shop.roll_back()
    assert shop.aliases() == {"champion": second, "previous": first}


@pytest.mark.parametrize("num_done", [0, 1, 2])
@pytest.mark.parametrize("again", ["roll_back", "promote"])
def test_a_rollback_killed_between_its_calls_loses_no_version_and_the_next_command_ends_it(
    shop, monkeypatch, num_done, again
):
    shop = shop()
    first = shop.add(0.4)
    shop.promote()
    second = shop.add(0.6)
    shop.promote()
    calls, point = [], Registry.point

    def killed_after(registry, alias, number=None):
        if len(calls) == num_done:
            raise KeyboardInterrupt
        calls.append(alias)
        point(registry, alias, number)

    with monkeypatch.context() as patch:
        patch.setattr(Registry, "point", killed_after)
        if num_done == 2:  # both aliases have moved, what comes behind has not
            patch.setattr(Registry, "delete_model_tag", killed_after)
        with pytest.raises(KeyboardInterrupt):
            shop.roll_back()
    assert len(calls) == num_done
    written = shop.roll_back() if again == "roll_back" else shop.promote(version=first)[1]
    assert f"finished a rollback that was interrupted: {shop.registry.name} version {first} is" in written
    assert shop.aliases() == {"champion": first, "previous": second}
    assert shop.registry.version(second).tags["tsdae.promotion"] == "rolled back to version 1"
    assert "champion again" in shop.roll_back()  # and then the way back is open as ever
    assert shop.aliases() == {"champion": second, "previous": first}


def test_a_refusal_moves_nothing_and_says_which_number_failed(shop):
    shop = shop(min_gain=0.3)
    first = shop.add(0.5)
    shop.promote()
    shop.add(0.6)
    result, written = shop.promote()
    assert not result.done
    assert "FAILS  ndcg_at_10 over 1 task: 0.6000 against 0.5000 of version 1, a gain of +0.1000" in written
    assert "version 2 is refused, version 1 stays champion" in written
    assert shop.aliases() == {"champion": first}
    tag = shop.registry.version("2").tags["tsdae.promotion"]
    assert tag.startswith("refused: ndcg_at_10 over 1 task: 0.6000 against 0.5000")


def test_a_worse_first_version_does_not_become_champion(shop):
    shop = shop()
    shop.add(0.05)
    result, written = shop.promote()
    assert not result.done
    assert "there is no champion yet" in written
    assert shop.aliases() == {}


def test_an_older_version_can_be_named_and_the_champion_itself_is_left_as_it_is(shop):
    shop = shop(min_gain=-1.0, max_p_value=1.0, max_loss=1.0)
    first, second = shop.add(0.5), shop.add(0.6)
    assert shop.promote(version=first)[0].champion == first
    assert shop.promote()[0].champion == second
    result, written = shop.promote()
    assert result.done
    assert "version 2 is champion already" in written
    assert shop.aliases() == {"champion": second, "previous": first}


def test_a_version_measured_on_other_documents_is_refused_with_the_reason(shop):
    shop = shop()
    shop.add(0.5)
    shop.promote()
    shop.add(0.9, fingerprint="other documents")
    with pytest.raises(InputError, match="version 2 and version 1 were measured on different queries"):
        shop.promote()
    assert shop.aliases() == {"champion": "1"}


def test_without_a_version_or_its_values_the_remedy_is_named(shop):
    shop = shop()
    with pytest.raises(InputError, match="no version with the alias 'candidate'; run `tsdae register` first"):
        shop.promote()
    with pytest.raises(InputError, match=r"refused: .*7"):
        shop.promote(version="7")
    number = shop.add(0.5)
    shop.client.delete_model_version_tag(shop.registry.name, number, EVALUATION_TAG)
    with pytest.raises(InputError, match=r"has no per-query values; set evaluate\.tasks"):
        shop.promote()
    shop.registry.set_tags(number, {EVALUATION_TAG: "evaluation/gone"})
    with pytest.raises(InputError, match="has no artifact 'evaluation/gone' in its run"):
        shop.promote()


def test_the_command_ends_with_1_for_a_refusal_2_for_a_mistake_and_0_otherwise(
    shop, monkeypatch, capfd, tmp_path
):
    shop = shop()
    shop.add(0.5)
    path = tmp_path / "run.yaml"
    path.write_text(f"workspace: {shop.workspace}\nregister: {{name: {shop.registry.name}}}\n")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["tsdae", "promote", str(path), *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return caught.value.code, capfd.readouterr().err

    code, written = call("promote.min_gain=0.9")
    assert (code, "FAILS" in written) == (1, True)
    assert call("--rollback")[0] == 2
    assert call("--rollback", "--version", "1") == (
        2,
        "error: --rollback goes back to the previous champion; it takes no --version\n",
    )
    code, written = call()
    assert (code, shop.aliases()) == (0, {"champion": "1"})
    assert Path(shop.workspace.path, "mlflow.db").exists()


def test_aliases_must_differ():
    with pytest.raises(ValueError, match="different aliases"):
        PromoteConfig(previous="champion")
    assert TrackingConfig().uri is None
