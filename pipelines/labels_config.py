"""The configuration of labelled rows for the supervised objectives (`train.labels`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipelines.collection_config import require
from pipelines.pseudo_labels_config import PseudoLabelsConfig

# Of the rows that `generate` makes.
PSEUDO_COLUMNS, PSEUDO_MARGIN = ("query", "positive", "negative"), "margin"

# By objective: the usual columns of texts, and of the label.
_COLUMNS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "nli": (("premise", "hypothesis"), "label"),
    "sts": (("sentence1", "sentence2"), "score"),
    "pairs": (("sentence1", "sentence2"), "label"),
    "ranking": (("anchor", "positive"), None),
    "margin_mse": (PSEUDO_COLUMNS, PSEUDO_MARGIN),
}
# By objective: the parallel files of a USEB folder.
_USEB_FILES: dict[str, tuple[tuple[str, ...], str | None]] = {
    "sts": (("train.s1", "train.s2"), "train.lbl"),
    "pairs": (("train.s1", "train.s2"), "train.lbl"),
    "ranking": (("train.org", "train.para"), None),
}
SUPERVISED = tuple(_COLUMNS)
NLI_NAMES = ("contradiction", "entailment", "neutral")


@dataclass(frozen=True, kw_only=True)
class LabelsConfig:
    """Labelled rows: where they are read from and what their columns mean.

    input: a file, folder, glob or URL of Parquet, JSONL, CSV or TSV; with layout `useb` a folder.
    layout: `table` has named columns; `useb` has parallel files, one text or label per line: train.org and
    train.para for ranking, train.s1, train.s2 and train.lbl for sts and pairs.
    text_columns: () takes the objective's usual ones; ranking may name hard negatives behind the positive.
    label_column: None takes the objective's usual one.
    label_names: of the classes 0, 1, ... of nli, in any case; () takes contradiction, entailment, neutral.
    Numbers are understood as well.
    max_chars: rows with a longer text are set aside.
    generate: makes the rows from the documents instead of reading them, for margin_mse.
    on_bad_file: a file that cannot be read fails the stage, or is set aside as a whole, named and counted.
    """

    input: str = ""
    layout: Literal["table", "useb"] = "table"
    text_columns: tuple[str, ...] = ()
    label_column: str | None = None
    label_names: tuple[str, ...] = ()
    max_chars: int = 100_000
    on_bad_file: Literal["fail", "skip"] = "fail"
    generate: PseudoLabelsConfig | None = None

    def __post_init__(self) -> None:
        require(self.max_chars >= 1, "max_chars must be at least 1")
        named = [*self.text_columns, *([self.label_column] if self.label_column else [])]
        require(len(set(named)) == len(named), f"a column is named twice: {', '.join(named)}")
        lowered = [name.lower() for name in self.label_names]
        require(len(set(lowered)) == len(lowered), "label_names names a class twice")
        require(
            self.layout == "table" or not named,
            "layout useb has files instead of columns; leave text_columns and label_column out",
        )
        require(
            self.generate is None or not (self.input or named or self.layout == "useb"),
            "labels.generate makes the rows; leave input, layout, text_columns and label_column out",
        )

    def check(self, objective: str) -> None:
        """Refuses what does not fit the objective: ValueError."""
        if self.layout == "useb":
            fitting = ", ".join(_USEB_FILES)
            require(objective in _USEB_FILES, f"labels.layout useb is for {fitting}, not for {objective}")
        require(
            self.generate is None or objective == "margin_mse",
            f"labels.generate makes rows for objective margin_mse, not for {objective}",
        )
        texts, label = self.columns_of(objective)
        if objective == "ranking":
            require(len(texts) >= 2, "labels.text_columns of ranking: anchor, positive, then hard negatives")
            require(label is None, "ranking reads no label; leave labels.label_column out")
        else:
            usual, _ = _COLUMNS[objective]
            number = {2: "two", 3: "three"}[len(usual)]
            require(
                len(texts) == len(usual),
                f"labels.text_columns of {objective} must name {number} columns, got {len(texts)}",
            )
        require(objective == "nli" or not self.label_names, "labels.label_names is for nli")

    def columns_of(self, objective: str) -> tuple[tuple[str, ...], str | None]:
        """The columns (or files) of texts and that of the label in force."""
        if self.layout == "useb":
            return _USEB_FILES[objective]
        texts, label = _COLUMNS[objective]
        return self.text_columns or texts, self.label_column or label
