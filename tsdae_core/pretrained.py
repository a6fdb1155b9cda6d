"""The small encoder that ships with the package, a start for machines without a network.

Owns where it lies. How it was made is told in its folder's MODEL_CARD.md.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = "small_encoder"


def small_encoder_path() -> Path:
    """Return the folder of the shipped encoder, in sentence-transformers layout with its LM head.

    Raises:
        ValueError: if the installation lacks it.
    """
    folder = Path(__file__).with_name(_FOLDER)
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"this installation lacks the shipped encoder ({folder.name}); use model.start=scratch"
        )
    return folder
