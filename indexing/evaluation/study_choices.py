"""What a study searched on development data before its test, and what it chose, as a table.

Texts only; must not know files or how a search is made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from indexing.evaluation.report_text import percent

CHOICES_TITLE = "Chosen on development data"
CHOICES_LEGEND = (
    "Each value was tried with one seed and scored on development data (times 100); the best was run with "
    "all seeds, and only that was scored on the tasks. A value marked * is the smallest or largest that was "
    "tried, so a better one may lie beyond."
)
_HEADS = ("setting", "domain", "development data", "tried", "chosen")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A search of one setting on one domain.

    setting: who searched; is_shared: whether all other settings took its value.
    dev: names of the development tasks. name: of what was searched. tried: values with their scores.
    """

    setting: str
    domain: str
    dev: tuple[str, ...]
    name: str
    tried: tuple[tuple[str, float | None], ...]
    chosen: str | None
    is_shared: bool = False

    @property
    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        tried = ", ".join(
            f"{value}: {'failed' if score is None else percent(score)}" for value, score in self.tried
        )
        ends = (self.tried[0][0], self.tried[-1][0]) if len(self.tried) > 1 else ()
        mark = " *" if self.chosen in ends else ""
        return (
            self.setting + (" (for all settings)" if self.is_shared else ""),
            self.domain,
            ", ".join(self.dev),
            f"{self.name} {tried}",
            "-" if self.chosen is None else self.chosen + mark,
        )


def choices_markdown(choices: Sequence[Choice], write: Callable[[str], str]) -> list[str]:
    """Lines of a Markdown table; none without choices."""
    if not choices:
        return []
    lines = ["| " + " | ".join(_HEADS) + " |", "|---|---|---|---|---:|"]
    return [*lines, *("| " + " | ".join(map(write, choice.cells)) + " |" for choice in choices), ""]


def choices_html(choices: Sequence[Choice]) -> str:
    """A section of the page; empty without choices."""
    if not choices:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in _HEADS)
    rows = ""
    for choice in choices:
        first, *others = map(escape, choice.cells)
        rows += f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in others) + "</tr>"
    return (
        f"<h2>{CHOICES_TITLE}</h2>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f'<p class="legend">{escape(CHOICES_LEGEND)}</p>'
    )
