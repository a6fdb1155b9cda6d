"""The shipped studies: every grid is whole in every size. Their cells run in test_pipelines_study."""

from pathlib import Path

import pytest

from pipelines.config_io import read_tree
from pipelines.study.grid import cells_of
from pipelines.study.study_file import is_study, load_study, study_sizes

CONFIGS = Path(__file__).parents[2] / "configs" / "studies"
STUDIES = sorted(path for path in CONFIGS.glob("*.yaml") if is_study(path))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_has_three_sizes_and_its_cells_differ_where_they_should(path):
    assert study_sizes(path) == ["toy", "cpu", "paper"]
    assert read_tree(path)["name"] == path.stem
    for size in study_sizes(path):
        cells = cells_of(load_study(path, size=size))
        asked = [(cell.config, cell.system, cell.domain) for cell in cells]
        assert all(one not in asked[:i] for i, one in enumerate(asked)), size
        if size != "toy":
            assert len({cell.seed for cell in cells}) >= 3
