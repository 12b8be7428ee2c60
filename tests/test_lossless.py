"""The pictures of verified exits show what was run, and say of each draft what became of it."""

import numpy as np
import pytest
from conftest import INPUTS, LENGTH
from test_verify import agreeing

from mee_utils import CompanionError, ExitPolicy, generate, trace
from mee_utils.analysis import lossless
from mee_utils.traces.replay import replay_policy


@pytest.fixture(scope="module")
def model(tokenizer):
    return agreeing("t5", tokenizer)


@pytest.mark.parametrize("max_draft", [1, 3, 8])
@pytest.mark.parametrize("threshold", [0.005, 0.02, 0.05, 1.0])
def test_every_token_that_was_run_has_one_fate(model, threshold, max_draft):
    policy = ExitPolicy(threshold=threshold, min_layer=1, propagation="verify", max_draft=max_draft)
    found = generate(model, INPUTS, policy, max_new_tokens=LENGTH)
    for number, drafts in enumerate(found.drafts):
        table = lossless.one_output(found, number, max_draft, model.layers, str)
        assert len(table) == len(drafts.positions) and table["round"].iloc[-1] == drafts.rounds
        fates = table.fate.value_counts()
        assert fates.get("kept", 0) == drafts.kept
        assert fates.get("kept", 0) + fates.get("replaced", 0) == drafts.judged
        settled = table[table.fate != "dropped"]
        assert settled.position.tolist() == list(range(len(found.token_ids[number])))
        assert settled.token.tolist() == list(map(str, found.token_ids[number]))
        assert (table[table.fate == "from the last layer"].layer == model.layers).all()
        for _, rows in table.groupby("round"):
            assert len(rows) <= max_draft and np.diff(rows.position).tolist() == [1] * (len(rows) - 1)
            gone = (rows.fate == "dropped").to_numpy()
            assert not gone[0] and (np.diff(gone.astype(int)) >= 0).all(), "dropped ones come last"


def test_acceptance_by_layer_adds_up_to_what_decoding_keeps(model):
    policy = ExitPolicy(threshold=0.02, min_layer=2, propagation="verify", max_draft=4)
    found = generate(model, INPUTS, policy, max_new_tokens=LENGTH)
    replayed = replay_policy(trace(model, INPUTS, max_new_tokens=LENGTH), policy)
    table = lossless.acceptance(replayed, LENGTH, rule="margin")
    tokens, judged = found.tokens, sum(output.judged for output in found.drafts)
    assert table.layer.tolist() == list(range(2, model.layers)) and (table.rule == "margin").all()
    assert table.drafted.sum() == pytest.approx(judged / tokens)
    kept = (table.drafted * table.kept.fillna(0)).sum() * tokens
    assert kept == pytest.approx(sum(output.kept for output in found.drafts))
    row = lossless.summary(replayed, 4, LENGTH)
    assert row["acceptance"] == found.acceptance and row["drafted"] == pytest.approx(judged / tokens)
    assert row["tokens_a_round"] == tokens / sum(output.rounds for output in found.drafts)


def test_exits_that_were_not_verified_have_no_drafts(model):
    found = generate(model, INPUTS[:1], ExitPolicy(min_layer=1), max_new_tokens=3)
    with pytest.raises(CompanionError, match="not verified"):
        lossless.one_output(found, 0, 4, model.layers, str)
