"""The command line: complete help, one line and exit code 2 for what the user can mend."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pipelines.cli import main as cli
from pipelines.config import RunConfig
from pipelines.config_io import load_config

CONFIG = str(Path(__file__).parents[2] / "configs" / "quickstart.yaml")
STAGES = ("run", "prepare", "train", "embed", "index", "evaluate", "register", "doctor")


def commands(command=None, path=()):
    """Every command and group below the program, with its path."""
    command = command or typer.main.get_command(cli.app)
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


COMMANDS = list(commands())
IDS = [" ".join(path) or "tsdae" for path, _ in COMMANDS]


def call(monkeypatch, *arguments):
    """Runs the entry point as the shell does; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["tsdae", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code


def test_every_stage_has_a_command():
    assert {*STAGES, "search", "corpus docs", "config show", "config check"} <= set(IDS)


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=IDS)
def test_every_command_option_and_argument_is_explained(path, command):
    assert command.help
    assert command.help.strip()[-1] in ".)"
    for parameter in command.params:
        if parameter.name != "help":
            assert getattr(parameter, "help", None), parameter.name


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=IDS)
def test_help_shows_every_parameter(path, command):
    result = CliRunner().invoke(cli.app, [*path, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0
    for parameter in command.params:
        if parameter.name not in ("help", "install_completion", "show_completion"):
            shown = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
            assert (shown or parameter.name).strip("[].") in result.output
    for name in getattr(command, "commands", {}):
        assert name in result.output


def test_help_answers_without_loading_the_heavy_libraries():
    code = (
        "import sys, pipelines.cli.main as m\n"
        "try: m.app(['--help'])\nexcept SystemExit: pass\n"
        "loaded = {'ray', 'torch', 'mlflow', 'transformers', 'faiss'} & set(sys.modules)\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", STAGES)
def test_a_mistake_in_the_configuration_is_one_line_and_code_2_before_anything_starts(
    monkeypatch, capfd, tmp_path, command
):
    assert call(monkeypatch, command, CONFIG, f"workspace={tmp_path}/w", "train.num_step=5") == 2
    written = capfd.readouterr()
    assert written.err == (
        "error: unknown configuration key 'train.num_step'. Did you mean 'train.num_steps'?\n"
    )
    assert written.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("run", "nowhere.yaml"), "nowhere.yaml"),
        (("config", "show", "nowhere.yaml"), "nowhere.yaml"),
        (("config", "show", CONFIG, "train.optim.lr=[fast]"), "['fast']"),
        (("search", "a query", "--workspace", "nowhere"), "nowhere"),
    ],
)
def test_user_errors_are_one_line_on_standard_error_and_exit_code_2(
    monkeypatch, capfd, tmp_path, arguments, part
):
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *arguments) == 2
    written = capfd.readouterr()
    assert written.err.startswith("error: ")
    assert written.err.count("\n") == 1
    assert part in written.err
    assert written.out == ""


def test_a_value_error_of_many_lines_becomes_one_and_debug_shows_where_it_came_from(monkeypatch, capfd):
    def fail(*_):
        raise ValueError("first\n  second [red]line[/red]")

    monkeypatch.setattr(cli, "_load", fail)
    assert call(monkeypatch, "config", "show", CONFIG) == 2
    assert capfd.readouterr().err == "error: first second [red]line[/red]\n"
    monkeypatch.setattr(sys, "argv", ["tsdae", "--debug", "config", "show", CONFIG])
    with pytest.raises(ValueError, match="first\n"):
        cli.main()


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch):
    def fail(*_):
        raise AssertionError("ours")

    monkeypatch.setattr(cli, "_load", fail)
    monkeypatch.setattr(sys, "argv", ["tsdae", "config", "show", CONFIG])
    with pytest.raises(AssertionError, match="ours"):
        cli.main()


def test_config_check_tells_each_file_and_fails_when_one_is_bad(monkeypatch, capfd, tmp_path):
    (tmp_path / "deep").mkdir()
    good, bad = tmp_path / "deep" / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("seed: 1\n")
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "job.yaml").write_text("apiVersion: ray.io/v1\nkind: RayJob\n")  # another tool's
    bad.write_text("sed: 1\n")
    assert call(monkeypatch, "config", "check", str(good)) == 0
    told = "(cls pooling; tsdae: adamw 3e-05 constant, batches of 8, 100,000 steps)"
    assert capfd.readouterr().out == f"ok    {good} {told}\n"
    assert call(monkeypatch, "config", "check", str(tmp_path)) == 2
    assert capfd.readouterr().out.splitlines() == [
        f"FAIL  {bad}: unknown configuration key 'sed'. Did you mean 'seed'?",
        f"ok    {good} {told}",
    ]


def test_config_check_of_a_folder_without_yaml_and_of_an_absent_file_fails(monkeypatch, capfd, tmp_path):
    assert call(monkeypatch, "config", "check", str(tmp_path)) == 2
    assert "no YAML files" in capfd.readouterr().err
    assert call(monkeypatch, "config", "check", str(tmp_path / "no.yaml")) == 2
    assert "FAIL" in capfd.readouterr().out


def test_config_show_prints_yaml_that_loads_to_what_would_run(monkeypatch, capfd, tmp_path):
    overrides = ["train.num_steps=7", "documents=null", "corpus.input='/data/a b: c'"]
    assert call(monkeypatch, "config", "show", CONFIG, *overrides) == 0
    shown = tmp_path / "shown.yaml"
    shown.write_text(capfd.readouterr().out, encoding="utf-8")
    assert load_config(shown) == load_config(CONFIG, overrides)
    assert load_config(shown) != RunConfig()


def test_the_program_without_a_command_shows_its_help(monkeypatch, capfd):
    assert call(monkeypatch) in (0, 2)
    written = capfd.readouterr()
    assert "prepare" in written.out + written.err


def test_an_unknown_command_and_an_unknown_option_are_usage_errors(monkeypatch, capfd):
    assert call(monkeypatch, "trian") == 2
    assert "trian" in capfd.readouterr().err
    assert call(monkeypatch, "search", "x", "--nothing") == 2
    assert "--nothing" in capfd.readouterr().err


def test_index_delete_takes_settings_apart_from_ids_that_look_like_them(monkeypatch):
    from pipelines import grow
    from pipelines.cli import index

    asked = []
    monkeypatch.setattr(grow, "delete_documents", lambda _run, _place, ids, **_: asked.append(list(ids)))

    def change(_path, overrides, work):
        asked.append(overrides)
        work(None, None, None)

    monkeypatch.setattr(index, "_change", change)
    settings = ("--set", "workspace=a", "--set", "embed.dim=4")
    assert call(monkeypatch, "index-delete", "c.yaml", "d1", "key=value", *settings) == 0
    assert asked == [["workspace=a", "embed.dim=4"], ["d1", "key=value"]]
