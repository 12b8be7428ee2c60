"""A causal model beside others' decoders: the same outputs, and drafts that are counted alike."""

import sys
from dataclasses import replace

import pytest
import torch
from benchmarks import causal
from causal_models import build_causal
from conftest import INPUTS

from mee_utils import Copies, ExitPolicy, MeeError, load_task
from mee_utils.companion.result_tables import AGAIN

LENGTH = 10
LAYER = 2


@pytest.fixture(scope="module")
def model(tokenizer):
    """A random model; its layers add little, so that drafts are right now and then."""
    model = build_causal("llama", tokenizer, dtype=torch.float32)
    with torch.no_grad():
        for layer in model.network.model.layers[LAYER:]:
            layer.self_attn.o_proj.weight.mul_(0.3)
            layer.mlp.down_proj.weight.mul_(0.3)
    return model


@pytest.fixture
def prompts():
    return [*INPUTS, "a b a b a b a b"]


def decoded(decode, prompts):
    made = [decode(prompt) for prompt in prompts]
    return [one.ids for one in made], sum(one.verified for one in made), sum(one.accepted for one in made)


def test_drafts_of_a_layer_are_as_right_with_transformers_as_with_ours(model, prompts):
    plain, *none = decoded(causal.with_transformers(model, LENGTH), prompts)
    assert none == [0, 0]
    theirs, verified, accepted = decoded(
        causal.with_transformers(model, LENGTH, 3, assistant_early_exit=LAYER), prompts
    )
    policy = ExitPolicy("static", exit_layers=(LAYER,), propagation="verify", max_draft=3)
    ours, own_verified, own_accepted = decoded(causal.ours(model, LENGTH, policy), prompts)
    assert theirs == ours == plain
    # after three right drafts the last layer of `transformers` says one more token, which nobody drafted
    assert 0 < accepted < verified and 0 <= own_verified - verified <= sum(map(len, plain)) // 4
    assert abs(own_accepted / own_verified - accepted / verified) < 0.1
    assert model.network.generation_config.num_assistant_tokens is None, "its own settings are as before"


def test_copies_are_counted_too(model, prompts):
    ours, *_ = decoded(causal.ours(model, LENGTH, Copies()), prompts)
    theirs, verified, accepted = decoded(
        causal.with_transformers(model, LENGTH, prompt_lookup_num_tokens=4), prompts
    )
    assert ours == theirs and 0 < accepted <= verified


@pytest.mark.parametrize(
    ("draft", "output", "expected"),
    [
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3], [1, 9, 3], 1),
        ([1, 2], [], 0),
        ([5], [4], 0),
        ([1, 2], [1], 1),
    ],
)
def test_drafts_are_right_up_to_the_first_that_is_not(draft, output, expected):
    assert causal.right(draft, output) == expected


def test_everything_is_set_beside_generate(model, prompts, monkeypatch):
    monkeypatch.setattr(causal, "LAYERS", (LAYER,))
    monkeypatch.setattr(causal, "of_economize", lambda *_: iter(()))
    task = load_task("summarization", limit=len(prompts))
    task = replace(task, inputs=prompts)
    both = ExitPolicy(threshold=0.2, propagation="verify", max_draft=2, min_layer=1, copies=Copies())
    planned = {causal.PLANNED: both, causal.BY_A_RULE: None}
    table = causal.timed(list(causal.contenders(model, LENGTH, planned, True)), task)
    assert set(AGAIN) < set(table) and causal.AGAIN_FULL not in set(table.way)
    alone = causal.timed(list(causal.contenders(model, LENGTH, planned, False)), task)
    assert set(alone.way) < set(table.way) and list(alone.decoder[alone.way != causal.FULL].unique()) == [
        "ours"
    ]
    table = table.set_index(["decoder", "way"])
    assert table.loc[("transformers", causal.FULL), ["speed", "kept"]].tolist() == [1, 1]
    assert ((table.low <= table.speed) & (table.speed <= table.high)).all()
    lossy = table.index.get_level_values("way").isin([causal.UNVERIFIED, causal.MARGIN, causal.FEW_TOKENS])
    assert (table[~lossy].same_outputs == 1).all() and (table[~lossy].kept == 1).all()
    assert table.acceptance.notna().sum() == 5 and table.acceptance.dropna().between(0, 1).all()
    shares = table.flops_share["ours"]
    assert shares[causal.FULL] == 1 and shares[causal.UNVERIFIED] < 0.8 and shares[causal.AT_A_LAYER] > 1
    assert table.flops_share["transformers"].isna().all()


def test_a_peer_that_is_missing_is_named(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "economize.techniques.lookup", None)
    with pytest.raises(MeeError, match='economize is not installed: run "make bench"'):
        next(causal.of_economize(model, LENGTH))


def test_economize_decodes_the_same(model, prompts, monkeypatch):
    pytest.importorskip("economize", reason="only make bench installs it")
    monkeypatch.setattr(causal, "LAYERS", (LAYER,))
    plain, *_ = decoded(causal.with_transformers(model, LENGTH), prompts)
    early, copies, unverified = causal.of_economize(model, LENGTH)
    assert unverified.way == causal.MARGIN and unverified.decoder == "economize"
    for lossless in (early, copies):
        ids, verified, accepted = decoded(lossless.decode, prompts)
        assert ids == plain and 0 < accepted <= verified
    assert all(len(ids) <= LENGTH for ids in decoded(unverified.decode, prompts)[0])
