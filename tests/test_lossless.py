"""What is counted of verified exits is what decoding does."""

import numpy as np
import pandas as pd
import pytest
from conftest import INPUTS, LENGTH
from test_verify import agreeing

from mee_utils import ExitPolicy, Task, generate, trace
from mee_utils.analysis import lossless
from mee_utils.companion import result_tables
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


def test_the_fastest_of_each_kind_stands_for_it(tmp_path):
    rows = [
        ("lossy shapes", "softmax_margin", 1.5),
        ("lossy shapes", "lstm", 1.2),
        ("lossy shapes", "linear", 1.7),
    ]
    rows += [("lossless shapes", "softmax_margin", 1.3), ("lossless shapes", "CTranslate2", 9.0)]
    table = pd.DataFrame(rows, columns=["part", "rule", "speed"])
    table = table.assign(processor="A", profile="small", batch=1, shape="mini", task="translation")
    table.loc[4, "task"] = None
    table.assign(lowest=table.speed - 0.1, highest=table.speed + 0.2).to_csv(tmp_path / "shapes.csv")
    found = result_tables.fastest_by_shape(tmp_path)
    best = found.set_index("kind").speed.to_dict()
    assert best == {"unverified, one layer": 1.7, "unverified, several layers": 1.2, "verified": 1.3}
    assert found.low.tolist() == found.lowest.tolist() and found.high.tolist() == found.highest.tolist()
    assert result_tables.fastest_by_shape(tmp_path / "elsewhere").empty
