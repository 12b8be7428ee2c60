"""Copied drafts: whatever is copied, outputs are full depth's, and each row gets what it gets alone."""

import numpy as np
import pytest
import torch
from conftest import FAMILIES, INPUTS, LENGTH, build_lively, end_with
from hypothesis import given
from hypothesis import strategies as st
from reference import counted_and_profiled

from mee_utils import Copies, ExitPolicy, MeeError, generate, replay_drafts, trace
from mee_utils.analysis.replayed_flops import verified_flops
from mee_utils.decoding import drafts, layerwise, planning
from mee_utils.decoding.full_depth import encode_batches, full_depth_states
from mee_utils.decoding.inputs import input_ids
from mee_utils.decoding.layerwise import LayerwiseDecoder
from mee_utils.decoding.rounds import Copied
from mee_utils.exits.copies import Copier
from mee_utils.models.costs import DecoderSizes
from mee_utils.traces.replay import replay_policy

EXITS = {"measure": "max_probability", "threshold": 0.05, "max_draft": 3, "propagation": "verify"}
BOTH = ExitPolicy(**EXITS, copies=Copies())
ALONE = {"copies": Copies(), "long endings alone": Copies(longest=4, shortest=2, max_draft=3)}
POLICIES = {**ALONE, "both": BOTH, "both, one draft": ExitPolicy(**EXITS | {"max_draft": 1}, copies=Copies())}


class Guesses(Copier):
    """Copies anything: right tokens, wrong ones, ends, none, as a seed draws them."""

    outputs: dict[tuple, list] = {}  # noqa: RUF012 (input -> its output)
    draw = np.random.default_rng(0)
    end = 1

    def draft(self, most):
        right = self.outputs[tuple(self.source)][len(self.written) :]
        kind = self.draw.integers(4)
        if kind == 0:
            return []
        many = int(self.draw.integers(1, 7))
        guessed = right[:many] if kind > 1 else self.draw.integers(0, 40, many).tolist()
        if kind == 3 and len(guessed) > 1:
            guessed[-1] = self.end if self.draw.random() < 0.5 else 5
        return guessed[:most]


@pytest.fixture
def guessing(monkeypatch):
    """Makes every draft a guess for a model, whose outputs are known."""

    def of(model, inputs, outputs, seed=0):
        ids = [tuple(model.tokenizer(text).input_ids) for text in inputs]
        monkeypatch.setattr(Guesses, "outputs", dict(zip(ids, outputs, strict=True)))
        monkeypatch.setattr(Guesses, "draw", np.random.default_rng(seed))
        monkeypatch.setattr(drafts, "Copier", Guesses)

    return of


@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_is_copied_the_output_is_that_of_full_depth(family, tokenizer, guessing):
    model = build_lively(family, tokenizer, seed=3)
    inputs = list(dict.fromkeys(INPUTS))
    full = generate(model, inputs, max_new_tokens=LENGTH)
    accepted = 0
    for number, policy in enumerate(POLICIES.values()):
        for batch_size in (1, 3, len(inputs)):
            guessing(model, inputs, full.token_ids, seed=number)
            out = generate(model, inputs, policy, max_new_tokens=LENGTH, batch_size=batch_size)
            assert out.token_ids == full.token_ids
            copied = np.concatenate(out.exit_layers) == 0
            accepted += copied.sum()
            assert np.isnan(np.concatenate(out.confidences)[copied]).all()
            assert (out.flops >= full.flops).all()
    assert accepted > 100


@pytest.mark.parametrize("name", POLICIES)
def test_a_row_gets_in_any_batch_what_it_gets_alone(name, lively):
    inputs = (INPUTS * 3)[:13]
    alone = generate(lively, inputs, POLICIES[name], max_new_tokens=LENGTH, batch_size=1)
    assert alone.token_ids == generate(lively, inputs, max_new_tokens=LENGTH).token_ids
    for batch_size in (5, 13):
        out = generate(lively, inputs, POLICIES[name], max_new_tokens=LENGTH, batch_size=batch_size)
        assert out.token_ids == alone.token_ids and out.flops.tolist() == alone.flops.tolist()
        for ours, theirs in zip(out.drafts, alone.drafts, strict=True):
            assert ours[:3] == theirs[:3] and np.array_equal(ours.exit_layers, theirs.exit_layers)


def test_in_bfloat16_passes_of_several_tokens_round_differently_and_most_tokens_are_the_same(
    tokenizer, guessing
):
    model = build_lively("t5", tokenizer, seed=3)
    model.network.to(torch.bfloat16)
    full = generate(model, INPUTS, max_new_tokens=LENGTH, batch_size=1).token_ids
    guessing(model, INPUTS, full)
    out = generate(model, INPUTS, Copies(), max_new_tokens=LENGTH, batch_size=1).token_ids
    pairs = [pair for both in zip(out, full, strict=True) for pair in zip(*both, strict=False)]
    assert np.mean([ours == theirs for ours, theirs in pairs]) > 0.8


def test_a_copied_end_ends_an_output_only_where_full_depth_does(tokenizer, guessing, monkeypatch):
    model = build_lively("t5", tokenizer, seed=3)
    written = np.concatenate(generate(model, INPUTS, max_new_tokens=LENGTH).token_ids)
    end = int(np.bincount(written[written > 1]).argmax())
    end_with(model.network, end)
    monkeypatch.setattr(Guesses, "end", end)
    full = generate(model, INPUTS, max_new_tokens=LENGTH).token_ids
    assert len({len(ids) for ids in full}) > 1
    for seed in range(5):
        guessing(model, INPUTS, full, seed)
        assert generate(model, INPUTS, BOTH, max_new_tokens=LENGTH).token_ids == full


def test_there_is_room_for_as_many_tokens_as_are_asked_for(lively, guessing):
    for length in range(1, 12):
        full = generate(lively, INPUTS, max_new_tokens=length).token_ids
        guessing(lively, INPUTS, full, seed=length)
        assert generate(lively, INPUTS, Copies(max_draft=6), max_new_tokens=length).token_ids == full


def test_an_output_that_repeats_itself_is_copied_from_itself(lively, monkeypatch):
    """Nothing is found in the input, as if it were empty."""
    monkeypatch.setattr(drafts, "Copier", lambda copies, source: Copier(copies, []))
    full = generate(lively, INPUTS, max_new_tokens=LENGTH)
    out = generate(lively, INPUTS, Copies(), max_new_tokens=LENGTH)
    assert out.token_ids == full.token_ids and (np.concatenate(out.exit_layers) == 0).any()
    assert sum(drafts.rounds for drafts in out.drafts) < out.tokens


def test_a_copy_may_need_more_room_than_the_cache_has(lively, guessing, monkeypatch):
    monkeypatch.setattr(layerwise, "FIRST_CAPACITY", 2)
    full = generate(lively, INPUTS, max_new_tokens=LENGTH).token_ids
    guessing(lively, INPUTS, full, seed=4)
    assert generate(lively, INPUTS, BOTH, max_new_tokens=LENGTH).token_ids == full


@pytest.mark.parametrize("given", [{}, {"threshold": 0.05}])
def test_drafts_are_planned_with_the_copies_that_a_policy_names(lively, given):
    """And the plan's replay of them is what decoding does."""
    policy = ExitPolicy("max_probability", propagation="verify", copies=Copies(), **given)
    full = generate(lively, INPUTS, max_new_tokens=LENGTH)
    assert generate(lively, INPUTS, policy, max_new_tokens=LENGTH).token_ids == full.token_ids
    ids = input_ids(lively.tokenizer, INPUTS)
    states = full_depth_states(lively, encode_batches(lively, ids), LENGTH)
    copied = planning.copied_along(policy.copies, states, LENGTH)
    by_hand = Copied.along(policy.copies, ids, full.token_ids, LENGTH)
    outputs = np.split(copied.offered, np.flatnonzero(states.position == 0)[1:])
    ours = {int(states.sequence[states.position == 0][n]): each.tolist() for n, each in enumerate(outputs)}
    theirs = np.split(by_hand.offered, np.cumsum([len(each) for each in full.token_ids])[:-1])
    assert [ours[number] for number in range(len(INPUTS))] == [each.tolist() for each in theirs]


@pytest.mark.parametrize("measure", ["static", "max_probability"])
def test_flops_are_those_that_a_profiler_counts(measure, t5, guessing, monkeypatch):
    """But for attention to positions that a token may not see: keys behind it, which are masked."""
    masked, sizes = [], DecoderSizes.of(t5.network.config)

    def noted(decoder, layer, x, span, run=LayerwiseDecoder.run_pass):
        masked.append(4 * sizes.inner * span.width * (span.width - 1) // 2)
        return run(decoder, layer, x, span)

    monkeypatch.setattr(LayerwiseDecoder, "run_pass", noted)
    rule = {"min_layer": t5.layers} if measure == "static" else {"min_layer": 1, "threshold": 0.05}
    policy = ExitPolicy(measure, **rule, propagation="verify", max_draft=3, copies=Copies())
    for text in INPUTS[:3]:
        masked.clear()
        guessing(t5, [text], generate(t5, [text], max_new_tokens=LENGTH).token_ids, seed=2)
        row, counted, profiled = counted_and_profiled(t5, text, policy, LENGTH)
        assert (row.exit_layers == 0).any() and sum(counted.values()) == profiled - sum(masked)


@given(
    source=st.lists(st.integers(0, 3), max_size=12),
    written=st.lists(st.integers(0, 3), max_size=12),
    longest=st.integers(1, 4),
    most=st.integers(1, 5),
)
def test_a_copy_is_what_a_plain_search_finds(source, written, longest, most):
    """The longest ending that stands in the input, its first place there; then in the output, its last."""
    copier = Copier(Copies(longest=longest, max_draft=4), source)
    for token in written:
        copier.write(token)
    expected = []
    for length in range(min(longest, len(written)), 0, -1):
        places = [at for at in range(len(source) - length) if source[at : at + length] == written[-length:]]
        own = [at for at in range(len(written) - length) if written[at : at + length] == written[-length:]]
        if places:
            expected = source[places[0] + length :]
        elif own:
            expected = written[own[-1] + length :]
        if expected:
            break
    assert copier.draft(most) == expected[: min(most, 4)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Copies(longest=0), "longest=0"),
        (lambda: Copies(max_draft=1.5), "max_draft=1.5"),
        (lambda: Copies(longest=2, shortest=3), "shortest=3 is more than longest=2"),
        (lambda: ExitPolicy(copies=Copies()), 'without propagation="verify"'),
        (lambda: ExitPolicy(propagation="verify", copies=3), r"copies=3: give Copies\(...\)"),
    ],
)
def test_mistakes_are_one_line(make, message):
    with pytest.raises(MeeError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", POLICIES)
def test_a_trace_foretells_the_copies_and_what_becomes_of_them(name, lively):
    policy = POLICIES[name]
    if isinstance(policy, Copies):
        policy = ExitPolicy.copying(policy, lively.layers)
    found = trace(lively, INPUTS, max_new_tokens=LENGTH)
    foretold = replay_drafts(found, policy, max_new_tokens=LENGTH)
    out = generate(lively, INPUTS, policy, max_new_tokens=LENGTH)
    flops = verified_flops(replay_policy(found, policy), policy.max_draft, LENGTH)
    assert flops.sum() == pytest.approx(out.flops.sum(), rel=0.05), "but for what is drafted beyond an end"
    for column in ("rounds", "verified", "accepted"):
        assert [getattr(drafts, column) for drafts in out.drafts] == getattr(foretold, column).tolist()
    assert np.concatenate(out.exit_layers).tolist() == foretold.exit_layers.tolist()
    assert foretold.accepted.sum() > 0 and (foretold.exit_layers == 0).any()
