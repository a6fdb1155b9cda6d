"""Two workers with copies or with shards, and one alone, are the same training."""

import parallel_worker
import pytest
import torch

_WAYS = ("copies", "shards", "shards, then copies", "copies, then shards")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parallel")
    torch.multiprocessing.spawn(parallel_worker.run_rank, args=(str(folder / "store"), str(folder)), nprocs=2)
    found = {
        (tie, way, rank): torch.load(folder / f"{tie}, {way}-{rank}.pt")
        for tie in ("tied", "untied")
        for way in _WAYS
        for rank in (0, 1)
    }
    for tie in ("tied", "untied"):
        alone = [(0, parallel_worker.NUM_STEPS, "ddp")]
        found[tie, "alone", 0] = parallel_worker.train(
            alone, tie=tie, rank=0, world_size=1, folder=folder / f"{tie}-alone"
        )
    return found


@pytest.mark.parametrize("tie", ["tied", "untied"])
@pytest.mark.parametrize("way", _WAYS)
def test_copies_shards_and_changes_between_them_give_the_weights_of_one_worker(results, tie, way):
    norms, weights = results[tie, way, 0]
    alone_norms, alone = results[tie, "alone", 0]
    assert norms == results[tie, way, 1][0]
    assert max(alone_norms) > 0.5  # clipping is at work, over all shards
    torch.testing.assert_close(torch.tensor(norms), torch.tensor(alone_norms), atol=1e-5, rtol=1e-5)
    assert weights.keys() == alone.keys()
    assert any(name.startswith("bottleneck") for name in weights)
    for name, value in alone.items():
        torch.testing.assert_close(weights[name], value, atol=1e-5, rtol=0, msg=name)
