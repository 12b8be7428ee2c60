"""Decoding waits for the device once a decision and once a token, whatever the device.

On a CPU nothing waits; what would wait on a GPU are calls that bring values to the host, and copies
to the device that are not asked to be asynchronous. Both are counted as they are called.
"""

import warnings
from collections import Counter

import pytest
import torch
from conftest import INPUTS, LENGTH, build_lively
from torch.overrides import TorchFunctionMode

from mee_utils import ExitPolicy, generate
from mee_utils.decoding import drafts, token, verify
from mee_utils.exits.classifiers import new_classifier

TO_HOST = {"cpu", "item", "tolist", "nonzero", "__bool__", "__int__", "__float__", "__index__"}
MARGIN = {"measure": "softmax_margin", "threshold": 0.02, "min_layer": 1}
POLICIES = {
    "full depth": ExitPolicy("static", min_layer=4),
    "fixed layer": ExitPolicy("static", min_layer=2),
    "margin": ExitPolicy(**MARGIN),
    "parallel": ExitPolicy(**MARGIN, propagation="parallel"),
    "pruned": ExitPolicy(**MARGIN, pruning="fixed", top_k=8),
    "adaptive pruning": ExitPolicy(**MARGIN, pruning="adaptive"),
    "weighted contrast": ExitPolicy(**MARGIN, contrast="weighted"),
    "jsd contrast": ExitPolicy(**MARGIN, contrast="jsd"),
    "similarity": ExitPolicy("hidden_similarity", threshold=0.9, min_layer=1),
    "entropy": ExitPolicy("entropy", threshold=0.01, min_layer=1),
    "patience": ExitPolicy("patience", threshold=1, min_layer=1),
}


class Waits(TorchFunctionMode):
    """Counts by name the calls for which a GPU would make the host wait."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = function.__name__
        kwargs = kwargs or {}
        if name in TO_HOST:
            self.counts["to host"] += 1
            with torch._C.DisableTorchFunction():  # what it calls itself is part of it
                return function(*args, **kwargs)
        moves = [value for value in (*args[1:], *kwargs.values()) if isinstance(value, torch.device | str)]
        if name == "to" and moves and not kwargs.get("non_blocking"):
            self.counts["copy that waits"] += 1
        if name in ("tensor", "as_tensor") and "device" in kwargs and not isinstance(args[0], torch.Tensor):
            self.counts["copy that waits"] += 1
        return function(*args, **kwargs)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.cpu(),
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: bool(x.any()),
        lambda x: int(x[0]),
        lambda x: x.nonzero(),
        lambda x: x.to("cpu"),
        lambda x: torch.tensor([1], device=x.device),
        lambda x: torch.as_tensor(1, device=x.device),
    ],
)
def test_each_way_of_waiting_is_seen(call):
    with Waits() as waits:
        call(torch.ones(3))
    assert sum(waits.counts.values()) == 1


def counted(monkeypatch, owner, method):
    """The waits within every call of a method, from now on."""
    waits = Waits()
    original = getattr(owner, method)

    def run(*args, **options):
        with waits:
            return original(*args, **options)

    monkeypatch.setattr(owner, method, run)
    return waits


@pytest.fixture(scope="module")
def lively(tokenizer):
    return build_lively("t5-deep-decoder", tokenizer)


@pytest.fixture(scope="module")
def classifiers(lively):
    names = ("hidden_classifier", "three_hidden_classifier", "history_classifier")
    return {name: new_classifier(name, lively.network.config.d_model) for name in names}


def decisions_of(out, policy, layers):
    """Decisions that one output at a time takes: at every allowed layer up to the exit."""
    first = policy.min_layer
    exits = [int(layer) for row in out.exit_layers for layer in row]
    return sum(min(layer, layers - 1) - first + 1 for layer in exits if layer >= first)


@pytest.mark.parametrize(
    "name", [*POLICIES, "hidden_classifier", "three_hidden_classifier", "history_classifier"]
)
def test_one_wait_a_decision_and_one_a_token(lively, classifiers, monkeypatch, name):
    policy = POLICIES.get(name) or ExitPolicy(classifiers[name], threshold=0.5, min_layer=1)
    waits = counted(monkeypatch, token.TokenDecoder, "decode")
    out = generate(lively, INPUTS, policy, max_new_tokens=LENGTH, batch_size=1)
    allowed = decisions_of(out, policy, lively.layers) + out.tokens
    assert out.tokens <= waits.counts["to host"] <= allowed
    assert waits.counts["copy that waits"] == 0


def test_a_batch_waits_no_more_often_than_its_longest_row(lively, monkeypatch):
    waits = counted(monkeypatch, token.TokenDecoder, "decode")
    out = generate(lively, INPUTS, POLICIES["margin"], max_new_tokens=LENGTH, batch_size=len(INPUTS))
    steps = max(map(len, out.token_ids))
    assert waits.counts["to host"] <= steps * lively.layers


def test_drafts_wait_once_a_decision_once_a_draft_and_once_a_verification(lively, monkeypatch):
    drafting = counted(monkeypatch, drafts.ExitDrafter, "draft")
    verifying = counted(monkeypatch, verify.DraftDecoder, "verify")
    policy = ExitPolicy(**MARGIN, propagation="verify", max_draft=4)
    out = generate(lively, INPUTS, policy, max_new_tokens=LENGTH, batch_size=1)
    drafted = sum(len(drafts.exit_layers) for drafts in out.drafts)
    assert 0 < drafting.counts["to host"] <= drafted * lively.layers
    assert 0 < verifying.counts["to host"] <= out.tokens
    assert drafting.counts["copy that waits"] == verifying.counts["copy that waits"] == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch warns of waits on a GPU only")
def test_pytorch_itself_warns_of_no_other_wait(tokenizer, monkeypatch, recwarn):
    model = build_lively("t5-deep-decoder", tokenizer)
    model.network.to("cuda")
    warnings.simplefilter("always")  # each wait at one line of code, not the first alone
    decode = token.TokenDecoder.decode

    def watched(*args, **options):
        torch.cuda.set_sync_debug_mode("warn")
        try:
            return decode(*args, **options)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    for name, policy in POLICIES.items():
        generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=1)  # what is made once waits once
        recwarn.clear()
        with monkeypatch.context() as patched:
            patched.setattr(token.TokenDecoder, "decode", watched)
            out = generate(model, INPUTS, policy, max_new_tokens=LENGTH, batch_size=1)
        waits = sum("synchronizing CUDA operation" in str(warning.message) for warning in recwarn)
        assert out.tokens <= waits <= decisions_of(out, policy, model.layers) + out.tokens, name
