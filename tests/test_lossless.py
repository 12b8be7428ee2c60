"""What is counted of verified exits is what decoding does."""

import numpy as np
import pytest
from conftest import INPUTS, LENGTH
from test_verify import agreeing

from mee_utils import ExitPolicy, Task, generate, trace
from mee_utils.analysis import lossless
from mee_utils.traces.replay import replay_policy


@pytest.fixture(scope="module")
def model(tokenizer):
    return agreeing("t5", tokenizer)


def test_acceptance_by_layer_adds_up_to_what_decoding_keeps(model):
    policy = ExitPolicy(threshold=0.02, min_layer=2, propagation="verify", max_draft=4)
    found = generate(model, INPUTS, policy, max_new_tokens=LENGTH)
    replayed = replay_policy(trace(model, INPUTS, max_new_tokens=LENGTH), policy)
    table = lossless.acceptance(replayed, LENGTH, rule="margin")
    tokens, verified = found.tokens, sum(output.verified for output in found.drafts)
    assert table.layer.tolist() == list(range(2, model.layers)) and (table.rule == "margin").all()
    assert table.drafted.sum() == pytest.approx(verified / tokens)
    kept = (table.drafted * table.kept.fillna(0)).sum() * tokens
    assert kept == pytest.approx(sum(output.accepted for output in found.drafts))
    row = lossless.draft_summary(replayed, 4, LENGTH)
    assert row["acceptance"] == found.acceptance and row["drafted"] == pytest.approx(verified / tokens)
    assert row["tokens_a_round"] == tokens / sum(output.rounds for output in found.drafts)


def test_a_policy_is_compared_with_itself_unverified(model):
    references = generate(model, INPUTS, max_new_tokens=LENGTH).texts
    task = Task("translation", "own", "test", INPUTS, [[text] for text in references], "")
    policy = ExitPolicy(threshold=0.02, min_layer=1, propagation="verify", max_draft=2)
    table = lossless.verified_and_not(model, task, {"margin": policy}, 4, max_new_tokens=LENGTH, batch_size=4)
    verified = generate(
        model,
        INPUTS,
        ExitPolicy(threshold=0.02, min_layer=1, propagation="verify", max_draft=4),
        max_new_tokens=LENGTH,
    )
    plain = generate(model, INPUTS, ExitPolicy(threshold=0.02, min_layer=1), max_new_tokens=LENGTH)
    full = generate(model, INPUTS, max_new_tokens=LENGTH)
    row = table.iloc[0]
    assert row.rule == "margin" and row.other_outputs == 0 and row.acceptance == verified.acceptance
    assert row.flops_share == pytest.approx(verified.flops.sum() / full.flops.sum())
    assert row.flops_unverified == pytest.approx(
        plain.flops.sum() / plain.tokens / full.flops.sum() * full.tokens
    )
    scores = [np.mean(task.score_examples(found.texts)["bleu"]) for found in (plain, full)]
    assert row.kept_unverified == pytest.approx(scores[0] / scores[1])
