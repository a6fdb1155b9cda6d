"""A study in MLflow: one parent run with the report, and below it one run for each cell."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.config_values import config_to_dict
from pipelines.manifest import stable_hash
from pipelines.storage import Location, without_credentials
from pipelines.study.grid import Cell
from pipelines.study.identity import without_idle_sections
from pipelines.study.run_cell import CellJob
from pipelines.study.study_config import StudyConfig
from pipelines.tracking import Tracker, legal_name
from pipelines.training_record import flatten


class StudyRuns:
    """The runs of one study; the same study started again goes on with them."""

    def __init__(self, tracker: Tracker, study: StudyConfig, *, size: str):
        self._tracker = tracker
        plain = config_to_dict(study)
        self._fingerprint = stable_hash(["study", size, plain])
        params = {"study": study.name, "size": size, "seeds": ", ".join(map(str, study.seeds))}
        params |= {
            f"axis.{legal_name(axis)}": ", ".join(map(str, values)) for axis, values in plain["axes"].items()
        }
        name = f"study-{study.name}-{size}".rstrip("-")
        self.parent = tracker.open_run(name, fingerprint=self._fingerprint, params=params)

    def log_cell(self, job: CellJob, raw: Mapping[str, Any]) -> None:
        """A finished cell: its settings as parameters, scores, scores by steps and losses as metrics."""
        tracker, cell = self._tracker, job.cell
        run_id = tracker.open_run(
            cell.title,
            fingerprint=stable_hash([self._fingerprint, job.key, cell.setting.label]),
            params=_params(cell),
            parent=self.parent,
        )
        made = raw["made"]
        end = int(made.get("num_steps", 0))
        rows: list[tuple[int, int, Mapping[str, float]]] = []
        now_ms = tracker.now_ms()
        for task, scores in raw["tasks"].items():
            values = {f"{legal_name(task)}.{name}": value for name, value in scores["values"].items()}
            rows.append((end, now_ms, values))
        for task, by_step in raw["steps"].items():
            for step, found in by_step.items():
                if int(step) != end:
                    named = {f"{legal_name(task)}.{name}": value for name, value in found.items()}
                    rows.append((int(step), now_ms, named))
        for name, key in (("train_loss", "losses"), ("validation_loss", "validation_losses")):
            rows += [(int(step), now_ms, {name: value}) for step, value in made.get(key, [])]
        if "seconds" in made:
            rows.append((end, now_ms, {"seconds": made["seconds"]}))
        tracker.log_metrics(run_id, rows)
        tags = {"tsdae.cell": job.key, "tsdae.setting": cell.setting.label, "tsdae.domain": cell.domain}
        tracker.set_tags(run_id, tags)
        tracker.close_run(run_id, status="FINISHED")

    def log_report(
        self, folder: Location, names: Sequence[str], means: Mapping[str, Mapping[str, float]]
    ) -> None:
        """The report's files and the means over seeds, by setting and column, go to the parent run."""
        values = {
            f"{legal_name(column)}.{legal_name(setting)}": value
            for setting, by_column in means.items()
            for column, value in by_column.items()
        }
        self._tracker.log_metrics(self.parent, [(0, self._tracker.now_ms(), values)])
        with tempfile.TemporaryDirectory(prefix="tsdae-study-") as local:
            for name in names:
                path = Path(local) / name
                path.write_bytes((folder / name).read_bytes())
                self._tracker.log_file(self.parent, path, folder="report")

    def close(self, *, is_whole: bool) -> None:
        """Ends the parent run."""
        self._tracker.close_run(self.parent, status="FINISHED" if is_whole else "FAILED")


def _params(cell: Cell) -> dict[str, str]:
    plain = config_to_dict(cell.config)
    kept: dict[str, Any] = {key: plain[key] for key in ("corpus", "model", "train", "phases") if key in plain}
    kept["train"] = without_idle_sections(kept["train"])
    flat = flatten({**kept, "system": config_to_dict(cell.system)})
    params = {key: without_credentials(str(value)) for key, value in flat.items()}
    return {"setting": cell.setting.label, "domain": cell.domain, "seed": str(cell.seed)} | params
