import core_ddp_worker
import pytest
import torch
import torch.multiprocessing as mp


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    mp.spawn(core_ddp_worker.run_rank, args=(str(folder / "store"), str(folder)), nprocs=2)
    return lambda name, rank: torch.load(folder / f"{name}-{rank}.pt")


@pytest.mark.parametrize("name", core_ddp_worker.NAMES)
def test_two_processes_train_to_the_weights_of_one(ranks, name):
    first, second = ranks(name, 0), ranks(name, 1)
    for key, value in first["weights"].items():
        assert torch.equal(value, second["weights"][key]), key  # ranks are identical, decoder included
    objective, model, tokens = core_ddp_worker.build(name)
    norms = core_ddp_worker.train(objective, model, tokens, rank=0, world_size=1)
    assert first["norms"] == pytest.approx(norms, rel=1e-4)
    assert first["norms"] == second["norms"]
    for key, value in model.state_dict().items():
        torch.testing.assert_close(first["weights"][key], value, atol=2e-5, rtol=1e-4, msg=key)
