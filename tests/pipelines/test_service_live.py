"""Switching versions: a new one is taken as a whole, a broken one not at all, a held one stays usable."""

import threading
from pathlib import Path

import pytest
from search_builders import make_workspace

from pipelines.config import RunConfig, TrackingConfig
from pipelines.errors import InputError
from pipelines.manifest import read_manifest
from pipelines.registry import Registry
from pipelines.service.config import ServeConfig
from pipelines.service.live import LiveSearcher
from pipelines.storage import Location
from pipelines.tracking import Tracker


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory):
    """Two workspaces with other encoders over the same documents."""
    from tests.pipelines.shard_builders import run_shards_here

    folder = tmp_path_factory.mktemp("live")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.lookup.run_shards", run_shards_here)
        for name, seed in (("a", 0), ("b", 1)):
            make_workspace(folder / name, seed=seed)
    return folder / "a", folder / "b"


def point(link, target):
    """Moves a link atomically, as an operator does."""
    fresh = link.with_name(f"{link.name}.new")
    fresh.symlink_to(target)
    fresh.replace(link)


def test_a_moved_link_switches_and_the_held_searcher_goes_on(workspaces, tmp_path):
    a, b = workspaces
    link = tmp_path / "current"
    point(link, a)
    live = LiveSearcher(RunConfig(workspace=str(link)))
    held = live.current
    assert not live.check()
    assert live.current is held
    point(link, b)
    assert live.check()
    assert live.current.version != held.version
    assert live.current.searcher.info["workspace"] == str(b)
    assert held.searcher.search(["read file"], 3) != live.current.searcher.search(["read file"], 3)
    assert held.searcher.info["workspace"] == str(a)


def test_a_version_that_cannot_be_opened_leaves_the_old_one_live_until_it_is_mended(workspaces, tmp_path):
    a, b = workspaces
    link = tmp_path / "current"
    point(link, a)
    live = LiveSearcher(RunConfig(workspace=str(link)))
    held = live.current
    (tmp_path / "half" / "index").mkdir(parents=True)
    point(link, tmp_path / "half")
    assert not live.check()
    assert "tsdae index" in live.last_error
    assert live.current is held
    point(link, b)
    assert live.check()
    assert live.last_error is None


def test_the_watch_switches_by_itself_and_ends_when_told(workspaces, tmp_path):
    a, b = workspaces
    link = tmp_path / "current"
    point(link, a)
    live = LiveSearcher(RunConfig(workspace=str(link), serve=ServeConfig(poll_s=0.02)))
    stop, switched = threading.Event(), threading.Event()
    thread = threading.Thread(target=live.watch, args=(stop, switched.set))
    thread.start()
    point(link, b)
    assert switched.wait(20)
    stop.set()
    thread.join(20)
    assert not thread.is_alive()


def test_nothing_to_open_is_told_at_the_start(tmp_path):
    with pytest.raises(InputError, match="tsdae index"):
        LiveSearcher(RunConfig(workspace=str(tmp_path)))


def test_a_moved_alias_of_the_registry_switches_encoder_and_index_together(workspaces, tmp_path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracker = Tracker(uri, "tsdae", str(tmp_path / "artifacts"))
    serve = ServeConfig(model="models:/docs@champion")
    config = RunConfig(workspace=str(tmp_path), serve=serve, tracking=TrackingConfig(uri=uri))
    run = tracker.open_run("train", fingerprint="f", params={})
    with pytest.raises(InputError, match="no models:/docs@champion"):
        LiveSearcher(config)

    def register(workspace, **tags):
        manifest = read_manifest(Location.parse(workspace) / "encoder")
        fingerprint = manifest.facts["encoder_fingerprint"]
        tags = {"tsdae.workspace": str(workspace), "tsdae.encoder": fingerprint} | tags
        registry = Registry(tracker, "docs")
        encoder = Path(workspace) / "encoder"
        version = registry.add_version(encoder, run_id=run, fingerprint=str(tags), params={}, tags=tags)
        registry.point("champion", version)
        return version

    a, b = workspaces
    first = register(a)
    live = LiveSearcher(config)
    assert (live.current.model_version, live.current.searcher.info["workspace"]) == (first, str(a))
    register(b, **{"tsdae.encoder": "another"})
    assert not live.check()
    assert "another encoder" in live.last_error
    second = register(b)
    assert live.check()
    assert (live.current.model_version, live.current.searcher.info["workspace"]) == (second, str(b))
