"""The map of a workspace as a file of its own: titles, colours by a column, deleted documents left out."""

import numpy as np
import pytest

from pipelines.corpus_map import workspace_map_svg
from pipelines.errors import InputError
from pipelines.storage import Location


def test_the_map_of_a_workspace_shows_titles_and_colours_by_a_column(search_workspace):
    place = Location.parse(search_workspace)
    by_column = workspace_map_svg(place, place / "corpus", column="topic")
    assert all(f">{topic} (30)<" in by_column for topic in ("files", "network", "colour", "numbers"))
    assert by_column.count("<title>") == 120
    assert "<title>files 0</title>" in by_column
    sampled = workspace_map_svg(place, place / "corpus", num_points=40)
    assert sampled.count("<title>") == 40
    with pytest.raises(InputError, match="no column 'mood'"):
        workspace_map_svg(place, place / "corpus", column="mood")


def test_deleted_documents_are_not_on_the_map_and_counted(search_workspace, monkeypatch):
    place = Location.parse(search_workspace)
    deleted = np.array([0, 1, 1 << 32], np.int64)  # two rows of the first shard, one of the second
    monkeypatch.setattr("pipelines.corpus_map.read_deleted", lambda *_: deleted)
    whole = workspace_map_svg(place, place / "corpus", column="topic")
    assert whole.count("<title>") == 117
    assert ">3 deleted documents are left out<" in whole
    for title in ("files 0", "colour 2", "network 1"):
        assert f"<title>{title}</title>" not in whole
    assert workspace_map_svg(place, place / "corpus", num_points=10).count("<title>") == 10
    everything = np.concatenate([np.arange(60), (1 << 32) + np.arange(59)])
    monkeypatch.setattr("pipelines.corpus_map.read_deleted", lambda *_: everything)
    with pytest.raises(InputError, match="has 1 documents to show, a map needs at least two"):
        workspace_map_svg(place, place / "corpus")
