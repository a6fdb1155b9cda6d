"""Where Ray Train enters a worker.

Ray Train's controller loads the function and its argument, too. Here they bring neither torch nor
transformers along, which saves it many seconds before each start.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping


def train_entry(settings: Mapping[str, bytes]) -> None:
    """Runs the pickled TrainJob in `settings["job"]`: our own object inside our own cluster."""
    from pipelines.train_worker import train_worker

    train_worker(pickle.loads(settings["job"]))
