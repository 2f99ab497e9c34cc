"""Flower's privacy mods and wrappers, as docs/privacy.md says they behave with late updates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

flwr = pytest.importorskip("flwr.app")
mods = pytest.importorskip("flwr.clientapp.mod")

START, MOVE = np.ones(4, np.float32), np.full(4, 3.0, np.float32)  # x_s, and a δ of length 6


def arrays(**named: Any) -> Any:
    return flwr.ArrayRecord({name: flwr.Array(array) for name, array in named.items()})


def message(**config: Any) -> Any:
    """A job from x_s, however late it is answered."""
    content = flwr.RecordDict({"arrays": arrays(w=START), "config": flwr.ConfigRecord(config)})
    return flwr.Message(metadata=flwr.Metadata(1, "m", 0, 1, "", "", 0.0, 3600.0, "train"), content=content)


def answer(job: Any, **named: Any) -> Any:
    metrics = flwr.MetricRecord({"num-examples": 1})
    return flwr.Message(flwr.RecordDict({"arrays": arrays(**named), "metrics": metrics}), reply_to=job)


def weights_out(job: Any, context: Any) -> Any:
    return answer(job, w=START + MOVE)


def delta_out(job: Any, context: Any) -> Any:
    return answer(job, delta=MOVE)


def through(mod: Callable[..., Any], app: Callable[..., Any], **config: Any) -> Any:
    return mod(message(**config), flwr.Context(1, 1, {}, flwr.RecordDict(), {}), app)


def weights(reply: Any) -> Any:
    return reply.content["arrays"].to_numpy_ndarrays()[0]


@pytest.mark.parametrize(
    "mod", [mods.fixedclipping_mod, mods.adaptiveclipping_mod, mods.LocalDpMod(1.0, 0.0, 1.0, 1e-5)]
)
def test_mods_clip_weights_against_the_model_of_their_own_message_and_refuse_deltas(mod: Any) -> None:
    late = through(mod, weights_out, clipping_norm=1.0)
    assert np.linalg.norm(weights(late) - START) == pytest.approx(1.0)
    refused = through(mod, delta_out, clipping_norm=1.0)
    assert refused.has_error()
    assert "keys in the ArrayRecord of the reply message to match" in refused.error.reason


def test_client_side_clipping_needs_the_threshold_in_every_message_and_an_update_that_is_not_zero() -> None:
    assert "requires the key 'clipping_norm'" in through(mods.fixedclipping_mod, weights_out).error.reason
    with pytest.raises(ZeroDivisionError):
        through(mods.fixedclipping_mod, lambda job, context: answer(job, w=START), clipping_norm=1.0)
    spoilt = through(mods.fixedclipping_mod, lambda job, context: answer(job, w=START + math.nan), clipping_norm=1.0)
    assert np.isnan(weights(spoilt)).all()


def test_the_server_side_wrapper_clips_a_late_update_against_the_wrong_model() -> None:
    strategies = pytest.importorskip("flwr.serverapp.strategy")
    wrapper = strategies.DifferentialPrivacyServerSideFixedClipping(strategies.FedAvg(), 0.0, 1.0, 1)
    now = START + 5  # the model has moved on
    wrapper.current_arrays = arrays(w=now)
    found, _ = wrapper.aggregate_train(2, [weights_out(message(), None)])
    moved = found.to_numpy_ndarrays()[0] - now
    assert moved == pytest.approx(np.full(4, -0.5)), "δ is positive: what was clipped is δ minus the drift"


def test_secure_aggregation_answers_only_its_own_stages() -> None:
    secure = pytest.importorskip("flwr.client.mod").secaggplus_mod
    with pytest.raises(KeyError, match="secaggplus_configs"):
        through(secure, weights_out)
