"""A version's requirements are what its encoder imports, no less."""

import numpy as np
import pytest

from pipelines.registry import Registry, model_requirements
from pipelines.tracking import Tracker
from tests.bare_process import logged_requirements, predict_bare, reachable
from tsdae_core.encoder import SentenceEncoder
from tsdae_core.flow import Flow, FlowConfig
from tsdae_core.pretrained import small_encoder_path

TEXTS = ["a table", "a file of rows"]


@pytest.fixture(scope="module")
def with_flow(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flow") / "encoder"
    encoder = SentenceEncoder.load(small_encoder_path())
    encoder.heads.append(Flow(encoder.dim, FlowConfig(num_steps=1, hidden_size=8), seed=0).eval())
    encoder.save(folder)
    return folder


def test_only_an_encoder_with_a_flow_requires_its_library(with_flow):
    plain = model_requirements(small_encoder_path())
    more = model_requirements(with_flow)
    assert [line for line in more if line not in plain] == [more[-1]]
    assert more[-1].startswith("zuko==")
    assert "zuko" not in reachable(plain)  # so nothing else brings it


def test_an_encoder_with_a_flow_embeds_in_a_process_with_its_requirements_alone(with_flow, tmp_path):
    tracker = Tracker(f"sqlite:///{tmp_path}/mlflow.db", "e", str(tmp_path / "artifacts"))
    run = tracker.open_run("a", fingerprint="f", params={})
    registry = Registry(tracker, "flowing")
    number = registry.add_version(with_flow, run_id=run, fingerprint="f", params={}, tags={})
    registry.point("champion", number)
    with tracker.active():
        lines = logged_requirements(tracker.client(), "flowing", "champion")
    vectors = predict_bare(
        "models:/flowing@champion", tracker.uri, TEXTS, requirements=lines, folder=tmp_path
    )
    ours = SentenceEncoder.load(with_flow).encode(TEXTS)
    np.testing.assert_allclose(vectors, ours, atol=1e-5)
