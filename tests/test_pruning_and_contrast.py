"""What notebooks 03 and 04 compute, on small traces: by hand, and against plain recomputation."""

import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import INPUTS, LENGTH, build_lively
from scipy.spatial.distance import jensenshannon
from test_readouts import softmax

from mee_utils import ExitPolicy, MeeError, Task, generate, trace
from mee_utils.analysis import comparison, decisions, long_documents, pruning
from mee_utils.analysis import contrast as contrasting
from mee_utils.analysis.comparison import DecodingResult
from mee_utils.companion.published_numbers import (
    published_reductions,
    published_saturation,
    published_scores,
    weighted_rouge_l,
)
from mee_utils.decoding.layerwise import decoder_of
from mee_utils.exits.classifiers import new_classifier
from mee_utils.exits.contrast import Distribution, weighted_contrast
from mee_utils.exits.measures import find_measure
from mee_utils.models.costs import DecoderSizes, generation_flops
from mee_utils.models.states import output_scale
from mee_utils.traces.replay import StoredStates, chunks, replay_policies, replay_policy


@pytest.fixture(scope="module")
def eight(tokenizer):
    return build_lively("t5", tokenizer, layers=8)


@pytest.fixture(scope="module")
def traced(eight, tmp_path_factory):
    return trace(
        eight, INPUTS, max_new_tokens=LENGTH, states=tmp_path_factory.mktemp("states") / "states.npy"
    )


def distributions(found, model, token):
    """Probabilities at every layer from the stored state, in plain numpy."""
    norm, head = model.network.get_decoder().final_layer_norm, model.network.lm_head.weight.detach().numpy()
    states = norm(torch.from_numpy(np.array(found.states[token])).to(norm.weight.dtype)).detach().numpy()
    return [softmax(head @ (state * output_scale(model.network))) for state in states]


def test_boxes_and_recall_are_those_of_the_ranks(traced):
    boxes, found = pruning.rank_boxes(traced, model="m"), pruning.recall(traced, [1, 10, 600])
    for layer in (1, 5, 8):
        ranks, row = traced.final_rank[:, layer - 1], boxes[boxes.layer == layer].iloc[0]
        assert (
            row["median"] == np.median(ranks)
            and row.on_top == np.mean(ranks == 1)
            and row.low <= row["median"] <= row.high
        )
        shares = found[found.layer == layer].set_index("k").recall
        assert (
            shares[10] == pytest.approx(np.mean(ranks <= 10))
            and shares[600] == 1
            and shares[1] == pytest.approx(row.on_top)
        )
    assert boxes[boxes.layer == 8].on_top.iloc[0] == 1


@pytest.mark.parametrize(
    ("right", "expected"),
    [
        ([True] * 4, 2),
        ([False, True, True, True], 3),
        ([True, False, True, True], 4),
        ([False] * 4, 6),
        ([True, True, True, False], 6),
    ],
)
def test_the_minimum_layer_is_the_first_from_which_on_all_are_right(right, expected):
    assert pruning._from_where_on(np.array(right), [2, 3, 4, 5, 6]) == expected


def test_the_rule_for_the_minimum_layer(traced):
    replayed = replay_policy(traced, ExitPolicy("softmax_margin"))
    sure = pruning.minimum_layer(replayed.at_threshold(1.0), 0.95, task="t")
    assert sure["minimum_layer"] == 1 and sure["task"] == "t"  # nobody leaves, so that no layer is unsafe
    assert pruning.minimum_layer(replayed.at_threshold(0.0), 1.0)["minimum_layer"] > 1
    with pytest.raises(MeeError, match="precision=0"):
        pruning.minimum_layer(replayed, 0)


def test_exactness_counts_up_to_the_first_token_that_differs():
    found = pruning.exactness([[1, 2, 9, 9, 9], [4, 5], [6, 7, 8]], [[1, 2, 3, 4, 5], [4, 5], [6, 7]])
    assert found["other_output"] == 2 / 3 and found["other_token"] == pytest.approx(2 / (3 + 2 + 2))
    assert found["other_token_low"] < 2 / 7 < found["other_token_high"]
    assert pruning.exactness([[1, 2]], [[1, 2]])["other_token"] == 0


def test_break_even_is_where_the_count_of_operations_breaks_even():
    sizes = DecoderSizes(64, 64, 128, False, 12, 5000)
    margin = find_measure("softmax_margin")
    table = pd.DataFrame({k: comparison.decision_cost(sizes, margin, 4, k) for k in (100, 5000)}).T
    assert comparison.decision_cost(sizes, margin, 4) == table.loc[5000].to_dict()
    for ids, row in table.iterrows():
        depth = row.break_even * 12
        pruned = (
            (depth - 4) * ids / 5000 + 1
        )  # read-outs of a token that leaves at `depth`: a full one at layer 4, then pruned ones
        full = 12 * sizes.projections + sizes.readout
        assert (
            depth * sizes.projections + pruned * sizes.readout == pytest.approx(full) or row.break_even == 1
        )
    assert table.break_even[100] > table.break_even[5000]


def test_at_threshold_agrees_with_a_count_by_hand(eight, traced):
    policy = ExitPolicy("softmax_margin", threshold=1.0, min_layer=3, pruning="fixed", top_k=30)
    sources = [len(ids) for ids in eight.tokenizer(INPUTS).input_ids]
    found = comparison.replayed_row(replay_policy(traced, policy, eight))
    assert traced.source_tokens == sources
    sizes, lengths = DecoderSizes.of(eight.network.config), np.unique(traced.sequence, return_counts=True)[1]
    spent, full = (
        sum(
            sum(generation_flops(sizes, np.full(n, 8), source, np.full(n, reads * sizes.vocabulary)).values())
            for n, source in zip(lengths, sources, strict=True)
        )
        for reads in (1 + 5 * 30 / 600, 1)
    )
    assert found["mean_exit_layer"] == 8 and found["flops_share"] == pytest.approx(spent / full)


def test_a_token_is_contrasted_as_the_formula_says(eight, traced):
    token = contrasting.telling_token(traced, 6, eight)
    states = StoredStates(traced, eight).exit_states(slice(token, token + 1))
    found = weighted_contrast(states[5].full_logits, states[2].full_logits, 0.1)[0].exp().numpy()
    p = distributions(traced, eight, token)
    inside = p[5] >= 0.1 * p[5].max()
    ratio = p[5][inside] / p[2][inside]
    expected = np.where(inside, 0.0, p[5])
    expected[inside] = ratio / ratio.sum() * p[5][inside].sum()
    assert found.sum() == pytest.approx(1) and np.allclose(found, expected, atol=1e-6)


def test_the_amateurs_are_shares_of_all_tokens(eight, traced):
    table = contrasting.chosen_amateurs(traced, eight, task="t")
    assert np.allclose(table.groupby("layer").share.sum(), 1) and (table.amateur_layer < table.layer).all()


def test_the_amateur_is_the_layer_of_largest_divergence_and_each_layer_is_prepared_once(
    eight, traced, monkeypatch
):
    """Of `L` layers there are `L (L - 1) / 2` pairs; softmax and entropy are computed `L` times a token."""
    prepared, prepare = [], Distribution.from_logits

    def counted(logits):
        prepared.append(len(logits))
        return prepare(logits)

    monkeypatch.setattr(Distribution, "from_logits", counted)
    table = contrasting.chosen_amateurs(traced, eight)
    assert sum(prepared) == 8 * len(traced)
    counts = np.zeros((9, 9))
    for token in range(len(traced)):
        probabilities = distributions(traced, eight, token)
        for layer in range(2, 9):
            divergences = [jensenshannon(probabilities[layer - 1], p) for p in probabilities[: layer - 1]]
            counts[layer, np.argmax(divergences) + 1] += 1
    rows = table[["layer", "amateur_layer"]].to_numpy()
    assert table.share.to_numpy() == pytest.approx(counts[rows[:, 0], rows[:, 1]] / len(traced))
    prepared.clear()
    policy = ExitPolicy(threshold=1.0, min_layer=2, contrast="jsd")
    tokens = generate(eight, INPUTS[:1], policy, max_new_tokens=LENGTH).tokens
    assert sum(prepared) == 7 * tokens, "the last layer is not contrasted"


def test_one_plausible_id_is_all_the_public_form_needs(eight, traced):
    """With alpha 1 one id is plausible: the public form is certain everywhere, ours is the plain margin."""
    plain = replay_policy(traced, ExitPolicy("softmax_margin", min_layer=3))
    weighted = ExitPolicy("softmax_margin", min_layer=3, contrast="weighted", contrast_alpha=1.0)
    one = contrasting.without_mass(plain, eight, 1.0)
    assert one.confidences.shape == (len(traced), 5) and np.allclose(one.confidences, 1)
    assert np.allclose(replay_policy(traced, weighted, eight).confidences, plain.confidences)
    assert (one.token_ids == plain.token_ids).all()
    some = contrasting.without_mass(plain, eight, 0.1).confidences
    ours = replay_policy(traced, replace(weighted, contrast_alpha=0.1), eight).confidences
    assert (some > ours + 1e-6).any() and (some >= ours - 1e-6).all()


def test_pruned_and_contrasted_rules_are_ranked_as_plain_ones_are(eight, traced):
    for options in ({"pruning": "fixed", "top_k": 9}, {"contrast": "jsd"}, {}):
        policy = ExitPolicy("softmax_margin", min_layer=3, **options)
        replayed = replay_policy(traced, policy, eight)
        assert list(decisions.ranking(replayed).layer) == [3, 4, 5, 6, 7]
        assert list(decisions.precision_and_recall(replayed).layer) == [3, 4, 5, 6, 7]


def test_policies_replayed_together_are_as_each_alone_and_share_the_logits(eight, traced, monkeypatch):
    policies = {
        "margin": ExitPolicy(min_layer=2),
        "similarity": ExitPolicy("hidden_similarity"),
        "fixed": ExitPolicy(min_layer=2, pruning="fixed", top_k=500),
        "few": ExitPolicy("max_probability", min_layer=3, pruning="fixed", top_k=9),
        "few, then all": ExitPolicy(min_layer=3, pruning="fixed", top_k=9, prune_last_layer=False),
        "adaptive": ExitPolicy(min_layer=4, pruning="adaptive"),
        "weighted": ExitPolicy(min_layer=4, contrast="weighted"),
        "jsd": ExitPolicy(min_layer=2, contrast="jsd", pruning="decaying", top_k=80, least_k=7),
        "foretold": ExitPolicy(new_classifier("past_future", 32, decoder_layers=8).double()),
    }
    alone = {name: replay_policy(traced, policy, eight) for name, policy in policies.items()}
    decoder = decoder_of(eight.network)
    compute_logits = decoder.logits
    rows = []
    monkeypatch.setattr(decoder, "logits", lambda states: rows.append(len(states)) or compute_logits(states))
    together = replay_policies(traced, policies, eight)
    assert list(together) == list(policies)
    for name, replayed in together.items():
        assert replayed.bound.policy == policies[name]
        for array in ("confidences", "token_ids", "readout_rows", "kept"):
            assert np.array_equal(getattr(replayed, array), getattr(alone[name], array)), (name, array)
    assert (together["few, then all"].token_ids[:, -1] == traced.final_id).all()
    assert (together["few"].token_ids[:, -1] != traced.final_id).any(), "the list misses tokens"
    foretold = 7  # layers whose lens changes what the LM head is given
    assert sum(rows) <= len(traced) * (8 + foretold), "each layer once, whatever the number of policies"


def test_equal_policies_are_decoded_once(eight, monkeypatch):
    task = Task("translation", "s", "t", INPUTS, [["the red house"]] * len(INPUTS), "d")
    policies = {("a",): ExitPolicy(threshold=0.1), ("b",): ExitPolicy(threshold=0.1, min_layer=3)}
    policies["again",] = ExitPolicy("softmax_margin", threshold=0.1)
    decoded = []
    decode = comparison.decode
    monkeypatch.setattr(
        comparison, "decode", lambda *given, **options: decoded.append(given) or decode(*given, **options)
    )
    table, results = comparison.comparison(eight, task, policies, ("rule",), max_new_tokens=LENGTH)
    assert len(decoded) == 3 and results["a",] is results["again",] is not results["b",]
    assert table.rule.tolist() == ["full_depth", "a", "b", "again"]


def test_contrast_reads_a_few_tokens_at_a_time(eight, traced, monkeypatch):
    """What is computed for one chunk is let go before the next."""
    alive, whole = [], contrasting.chosen_amateurs(traced, eight)

    class Watched(contrasting.StoredStates):
        def exit_states(self, tokens, readout=None):
            gc.collect()
            assert not any(state() is not None for state in alive[:-1])
            states = super().exit_states(tokens, readout)
            alive.append(weakref.ref(states[0]))
            return states

    monkeypatch.setattr(contrasting, "chunks", lambda found: chunks(found, 16))
    monkeypatch.setattr(contrasting, "StoredStates", Watched)
    found = contrasting.chosen_amateurs(traced, eight)
    assert len(alive) == -(-len(traced) // 16)
    assert np.allclose(found.to_numpy(), whole.to_numpy())


def decoded(cost, *scores):
    return DecodingResult(float(np.mean(scores)), np.array(scores, dtype=float), 1.0, cost, 1.0, 1)


def test_a_pareto_improvement_beats_every_plain_setting_that_costs_no_more():
    plain = {
        None: decoded(10.0, *[50] * 40),
        ("unpruned", 0.5): decoded(5.0, *[40, 42] * 20),
        ("unpruned", 0.9): decoded(8.0, *[48, 50] * 20),
    }
    tested = {
        ("weighted", 0.1): decoded(6.0, *[45, 47] * 20),
        ("weighted", 0.2): decoded(8.5, *[46, 47] * 20),
        ("weighted", 0.3): decoded(4.0, *[10] * 40),
        ("weighted", 0.4): decoded(8.5, *[45, 55] * 20),
    }
    table = contrasting.pareto_verdict(plain | tested, ("unpruned",), ("weighted",)).set_index("threshold")
    assert list(table.improves) == [True, False, False, False] and list(table.worse) == [
        False,
        True,
        False,
        False,
    ]
    assert (
        table.gain[0.1] == pytest.approx(5)
        and np.isnan(table.gain[0.3])
        and table.low[0.4] < 0 < table.high[0.4]
    )


def test_published_rows_stand_beside_ours_with_a_reason():
    ours = pd.DataFrame(
        [
            {"model": m, "task": t, "reduction": r, "score": s, "mean_exit_layer": 6.0}
            for m in ("base", "vanilla")
            for t in ("question_answering", "translation")
            for r, s in (("full_depth", 41.0), ("unpruned", 40.0), ("fixed", 39.0), ("decaying", 38.0))
        ]
    )
    table = published_reductions(ours, 12)
    assert len(table) == 27 and table.why_they_differ.str.len().gt(10).all()
    squad = table[(table.model == "t5-squad") & (table.reduction == "fixed")].iloc[0]
    assert (squad.our_score, squad.our_score_unpruned, squad.our_depth, squad.our_model) == (
        39.0,
        40.0,
        0.5,
        "vanilla",
    )
    unpruned = table[(table.model == "t5-squad") & (table.reduction == "full_depth")].iloc[0]
    assert (unpruned.our_score, unpruned.score_at_full_depth) == (40.0, 100.0)
    without = table[table.dataset == "multi_news"]
    assert without[["our_model", "our_score"]].isna().all(axis=None)
    assert set(table.samples) == {
        10
    }  # seconds times samples a second: ten examples a row, where the paper says a hundred


def test_published_scores_stand_beside_ours_where_the_corpus_is_the_same():
    texts, task = ["the cat"], SimpleNamespace(targets=["the cat sat down"])
    assert weighted_rouge_l(texts, task.targets) == pytest.approx(71.896, abs=1e-3)  # ROUGE-L: 66.7
    assert weighted_rouge_l(["dog"], task.targets) == 0
    metrics = {"rouge1": 30.0, "rouge2": 9.0, "rougeL": 66.7}
    rows = [{"task": "summarization", "metric": m, "corpus_score": score} for m, score in metrics.items()]
    ours = pd.DataFrame(rows).assign(system="vanilla")
    sources = {"summarization": "data/dialogsum", "translation": "data/tatoeba_en_fr"}
    table = published_scores(ours, sources, {"summarization": texts}, {"summarization": task})
    assert table.set_index("metric").ours.to_dict() == metrics and set(table.task) == {"summarization"}
    assert table.ours_as_published.tolist() == pytest.approx([30.0, 9.0, 71.896], abs=1e-3)


def test_long_documents_come_in_both_layouts(tmp_path, tokenizer):
    tasks = long_documents.long_tasks("synthetic", 2, tmp_path)
    assert (
        list(tasks) == ["Multi-News", "BigPatent"]
        and len({tuple(task.inputs) for task in tasks.values()}) == 1
    )
    assert all(len(text.split()) > 200 for text in tasks["BigPatent"].inputs)
    again = long_documents.long_tasks(str(tmp_path / "multi-news.jsonl"), 1, tmp_path)
    assert again["BigPatent"].inputs == tasks["BigPatent"].inputs[:1]
    model = long_documents.random_long_t5(tokenizer)
    policies = {"full_depth": None, "margin": ExitPolicy("softmax_margin", threshold=1.0, min_layer=4)}
    table = long_documents.costs_by_part(model, tasks["Multi-News"], policies, 3).set_index("rule")
    parts = [column for column in table if column.endswith("_share") and column != "flops_share"]
    assert np.allclose(table[parts].sum(axis=1), table.flops_share) and table.flops_share["full_depth"] == 1
    assert table.readout_share["margin"] == pytest.approx(9 * table.readout_share["full_depth"])


def test_a_longer_source_makes_deciding_matter_less():
    table = long_documents.counted_by_length(DecoderSizes(64, 64, 128, False, 12, 5000), (64, 4096), 4, 50)
    wide = table.pivot(index="source_tokens", columns="rule", values="flops_share")
    assert wide.unpruned[64] > wide.unpruned[4096] > 1 and wide.unpruned[64] > wide.fixed[64] > 1


def test_table_1_stands_beside_ours_as_a_share_of_the_depth():
    """8.65 of 24, counted from 0, is 40 % of the depth; 8.65 of 12, counted from 1, is 72 %."""
    rows = [
        ("first_similar", "easy", 8.65, 1.2),
        ("first_similar", "difficult", 9.6, 1.2),
        ("rises_after_2", "easy", 0.9, 0.3),
        ("loss", "easy", 0.1, 0.1),
    ]
    ours = pd.DataFrame(rows, columns=["property", "group", "mean", "standard_deviation"])
    found = published_saturation(ours.assign(task="translation"), 12)
    found = found.set_index(["property", "group", "task"])
    means = found["mean"].round(1).to_dict()
    assert means["first_similar", "easy", "published"] == 40.2
    assert means["first_similar", "difficult", "published"] == 81.1
    assert means["first_similar", "easy", "translation"] == 72.1
    assert means["first_similar", "difficult", "translation"] == 80.0
    spread = found.standard_deviation.round(1)
    assert spread["first_similar", "easy", "published"] == 5.6, "1.34 layers of 24"
    assert spread["first_similar", "easy", "translation"] == 10.0, "1.2 layers of 12"
    after_a_sixth = found.loc["rises_after_2"]["mean"].to_dict()
    assert after_a_sixth[("easy", "published")] == 78, "after layer 4 of 24"
    assert after_a_sixth[("easy", "translation")] == 90
    assert "loss" not in found.index and list(found.index[0]) == ["first_similar", "easy", "published"]
