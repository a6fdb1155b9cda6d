"""The search of a study for the labelled rows that match an unsupervised training, all domains side by side.

Owns which cells are run next. The arithmetic is in `label_search`, running them is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.study.grid import Cell, Chosen, setting_cells, settings_of
from pipelines.study.label_search import Bisection
from pipelines.study.study_config import StudyConfig

# Runs cells and returns the score of each, in [0, 1]; a cell that failed is left out.
RunCells = Callable[[Sequence[Cell]], Mapping[int, float]]


@dataclass(frozen=True, kw_only=True)
class Search:
    """One supervised setting on one domain. num_seeds: of the score that is to be met."""

    setting: str
    domain: str
    bisection: Bisection
    num_seeds: int


def search_labels(
    study: StudyConfig,
    targets: Mapping[str, Sequence[float]],
    run: RunCells,
    chosen: Chosen | None = None,
) -> list[Search]:
    """Runs rounds of cells until every search is over.

    targets: by domain, the scores of `search.match`, one for each seed; a domain without is not searched.
    run: scores by the cell's place in the given sequence.
    chosen: overrides that development data have chosen, by setting and domain.
    """
    wanted = study.search
    assert wanted is not None
    searches = [
        Search(
            setting=setting,
            domain=domain,
            num_seeds=len(scores),
            bisection=Bisection(
                wanted,
                target=float(np.mean(scores)),
                precision=float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0,
            ),
        )
        for domain, scores in targets.items()
        if scores
        for setting in wanted.settings
    ]
    by_label = {setting.label: setting for setting in settings_of(study)}
    while due := [(s, number) for s in searches if (number := s.bisection.next_number()) is not None]:
        cells: list[Cell] = []
        owners: list[int] = []
        for place, (search, number) in enumerate(due):
            base = by_label[search.setting]
            setting = replace(base, label=f"{base.label}, {number:,} rows")
            # Without any row it is the encoder before training.
            more = [(wanted.key, number)] if number else [("system.kind", "start")]
            tuned = (chosen or {}).get((search.setting, search.domain), ())
            fresh = setting_cells(study, setting, search.domain, more=[*tuned, *more])
            cells += fresh
            owners += [place] * len(fresh)
        scores = run(cells)
        for place, (search, number) in enumerate(due):
            mine = [scores[i] for i, owner in enumerate(owners) if owner == place and i in scores]
            if mine:
                search.bisection.tell(number, mine)
            else:  # all its cells failed: nothing more can be learnt here
                searches.remove(search)
    return searches
