"""Is exiting worth it for a model: what is chosen on one half is reported on the other, for any family."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import INPUTS, LENGTH, build_lively
from markdown_it import MarkdownIt
from transformers import BartConfig, BartForConditionalGeneration, GPT2Config, GPT2LMHeadModel

from mee_utils import AnyModel, ExitPolicy, MeeError, Model, generate, load_any_model, suitability, trace
from mee_utils.analysis import suitability as module
from mee_utils.analysis.statistics import RESAMPLES, Estimate
from mee_utils.common.files import check_writable
from mee_utils.companion import suitability_page
from mee_utils.companion.cli import main
from mee_utils.decoding.full_depth import encode_batches, full_depth_states, replay_states
from mee_utils.decoding.inputs import input_ids
from mee_utils.traces.drafts import as_planned
from mee_utils.traces.replay import replay_policy

PROMPTS = [*INPUTS, "two houses", "the man and his dog", "red"]
HALF = len(PROMPTS) // 2


@pytest.fixture(scope="module")
def model(tokenizer):
    return build_lively("t5", tokenizer)


@pytest.fixture(scope="module")
def traced(model, tmp_path_factory):
    states = tmp_path_factory.mktemp("suitability") / "states.npy"
    return trace(model, PROMPTS, max_new_tokens=LENGTH, states=states)


@pytest.fixture(scope="module")
def result(model, traced):
    return module.suitability_of(traced, model)


def policy_of(row):
    """The policy that a row of the rules describes in words."""
    measures = module.UNTRAINED | {"softmax margin, pruned": "softmax_margin"}
    numbers = [int(word.strip(",")) for word in row.decides.split() if word.strip(",").isdigit()]
    if row.rule == module.FIXED_LAYER:
        return ExitPolicy("static", min_layer=numbers[0])
    layers = range(numbers[0], 4) if row.decides.startswith("from") else numbers
    pruned = {"pruning": "fixed", "top_k": 64} if row.rule.endswith("pruned") else {}
    return ExitPolicy(measures[row.rule], threshold=row.threshold, exit_layers=list(layers), **pruned)


def loss_and_depth(traced, model, row, first, last):
    """The share of other tokens, and the mean exit layer, of some outputs."""
    part = replay_policy(traced, policy_of(row), model).part(first, last)
    exits = part.exits()
    return 1 - part.same_token[np.arange(len(exits)), exits].mean(), part.layers[exits].mean()


def test_what_one_half_chose_within_a_loss_the_other_half_reports(result, traced, model):
    assert len(result.rules) >= 10 and set(result.rules.wanted) == {0.01, 0.05}
    for row in result.rules.itertuples():
        chosen, _ = loss_and_depth(traced, model, row, HALF, len(PROMPTS))
        reported, depth = loss_and_depth(traced, model, row, 0, HALF)
        assert chosen <= row.wanted + 1e-9, row.rule
        assert reported == pytest.approx(1 - row.same_token) and depth == pytest.approx(row.mean_exit_layer)


def test_outputs_change_where_one_token_or_more_does(result, traced, model):
    for row in result.rules.itertuples():
        part = replay_policy(traced, policy_of(row), model).part(0, HALF)
        same = part.same_token[np.arange(len(part.trace)), part.exits()]
        changed = [not tokens.all() for tokens in part.trace.by_output(same)]
        assert row.changed_outputs == pytest.approx(np.mean(changed))


def test_the_half_that_reports_has_no_say_in_what_is_chosen(model, result, tmp_path):
    others = [f"Bob likes {thing}." for thing in ("soup", "bread", "keys", "rivers", "Rome")]
    states = tmp_path / "states.npy"
    changed = trace(model, [*others, *PROMPTS[HALF:]], max_new_tokens=LENGTH, states=states)
    other = module.suitability_of(changed, model)
    chosen = ["rule", "wanted", "decides", "threshold"]
    assert other.rules[chosen].equals(result.rules[chosen])
    assert other.drafts[["rule", "decides", "max_draft"]].equals(
        result.drafts[["rule", "decides", "max_draft"]]
    )
    assert not np.allclose(other.rules.flops_share, result.rules.flops_share)


def test_sorted_inputs_are_shuffled_before_they_are_halved(model, monkeypatch):
    """On a corpus sorted by kind one half would choose for the other."""
    halves = []
    suitability_of = module.suitability_of

    def kept(traced, *arguments):
        halves.append({tuple(ids) for ids in traced.source_ids[: len(PROMPTS)]})
        return suitability_of(traced, *arguments)

    monkeypatch.setattr(module, "suitability_of", kept)
    long = [f"{text} and the river" for text in PROMPTS]
    suitability(model, [*PROMPTS, *long], max_new_tokens=2)
    (first_half,) = halves
    easy = {tuple(ids) for ids in model.tokenizer(PROMPTS).input_ids}
    assert 0.2 < len(first_half & easy) / len(PROMPTS) < 0.8


def test_the_best_rule_is_the_one_that_was_cheapest_where_rules_were_chosen(result):
    for loss in module.LOSSES:
        rows = result.rules[result.rules.wanted == loss]
        assert result.best(loss).chosen_flops_share.item() == rows.chosen_flops_share.min()


def test_settled_tokens_grow_with_the_layer_up_to_all(result, model):
    shares = result.settled.share.to_numpy()
    assert len(shares) == model.layers and (np.diff(shares) >= 0).all() and shares[-1] == 1
    # the mean of a layer number from 1 is a sum of the shares that have not settled before it
    assert result.oracle.mean_exit_layer.item() == pytest.approx(1 + (1 - shares[:-1]).sum())


@pytest.mark.parametrize(
    "policy",
    [
        ExitPolicy("softmax_margin", min_layer=1),
        ExitPolicy("hidden_similarity", min_layer=1),
        ExitPolicy("rising_top1", min_layer=1),
        ExitPolicy("patience", min_layer=2),
        ExitPolicy(pruning="fixed", top_k=16, min_layer=1),
    ],
    ids=lambda policy: policy.pruning or policy.measure.name,
)
def test_a_trace_is_planned_as_decoding_is(model, traced, policy):
    """The same confidences, tokens and counted logits, decision for decision."""
    states = full_depth_states(model, encode_batches(model, input_ids(model.tokenizer, PROMPTS)), LENGTH)
    decoded = replay_states(model, states, policy)
    planned = as_planned(replay_policy(traced, policy, model))
    assert np.array_equal(planned.readout_rows, decoded.readout_rows)
    assert np.array_equal(planned.token_ids, decoded.token_ids)
    assert np.allclose(planned.confidences, decoded.confidences, atol=1e-5)
    assert planned.bound.decision_layers == decoded.bound.decision_layers


def test_drafts_are_those_that_decoding_makes(result, model):
    (row,) = result.drafts.itertuples()
    drafted = replace(policy_of(row), propagation="verify", max_draft=int(row.max_draft))
    generation = generate(model, PROMPTS[:HALF], drafted, max_new_tokens=LENGTH)
    rounds = sum(drafts.in_round[-1] for drafts in generation.drafts)
    assert row.tokens_a_round == pytest.approx(generation.tokens / rounds)
    assert row.acceptance == pytest.approx(generation.acceptance, nan_ok=True)


# ---- the verdict


def fact(value, low=None, high=None):
    """An estimate with these bounds."""
    draws = np.linspace(low or value, high or value, RESAMPLES)
    return Estimate(value, draws)


def described(drafts=1.0, rule=1.0, loose_rule=1.0, oracle=0.5):
    """A result with these simulated speeds and FLOPs."""
    rows = []
    for wanted, speed in ((0.01, rule), (0.05, loose_rule)):
        row = {"rule": "margin", "wanted": wanted, "decides": "at layer 2", "threshold": 0.5}
        row |= {"chosen_flops_share": 1 / speed, "changed_outputs": 0.1} | fact(1 / speed).columns(
            "flops_share"
        )
        rows.append(row | fact(speed).columns("speed"))
    return module.Suitability(
        model="m",
        layers=4,
        examples=8,
        tokens=80,
        settled=pd.DataFrame(),
        oracle=pd.DataFrame([fact(oracle).columns("flops_share")]),
        rules=pd.DataFrame(rows),
        drafts=pd.DataFrame([fact(drafts, drafts - 0.02, drafts + 0.02).columns("speed")]),
    )


@pytest.mark.parametrize(
    "numbers, answer",
    [
        ({"drafts": 1.3}, "Worth trying, without any loss"),
        ({"drafts": 1.11}, "Not worth it as the model is"),  # its interval reaches below 1.1
        ({"rule": 1.2, "loose_rule": 1.5}, "Worth trying if 1% of the tokens may change"),
        ({"loose_rule": 1.5}, "Worth trying if 5% of the tokens may change"),
        ({"oracle": 0.97}, "Not worth it: predictions are final too late"),
        ({"oracle": 0.5}, "Not worth it as the model is: predictions are final early"),
    ],
)
def test_the_verdict_follows_the_numbers(numbers, answer):
    result = described(**numbers)
    assert answer in result.verdict and f"{1 / numbers.get('rule', 1):.0%}" in result.verdict


# ---- any model


def random_network(family, vocabulary):
    """A network of a family whose layers disagree."""
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0}
    torch.manual_seed(1)
    if family == "gpt2":
        network = GPT2LMHeadModel(
            GPT2Config(vocab_size=vocabulary, n_embd=32, n_layer=4, n_head=4, n_positions=96, **ids)
        )
    else:
        heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
        layers = {"encoder_layers": 2, "decoder_layers": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
        sizes = {"vocab_size": vocabulary, "d_model": 32, "max_position_embeddings": 96}
        network = BartForConditionalGeneration(BartConfig(**sizes, **heads, **layers, **ids))
    for weight in network.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    return network


def saved(network, tokenizer, path):
    """The folder of a checkpoint."""
    network.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def saved_t5(model, tmp_path_factory):
    return saved(model.network, model.tokenizer, tmp_path_factory.mktemp("saved") / "t5")


@pytest.fixture(scope="module", params=["gpt2", "bart", "t5"])
def folder(request, tokenizer, saved_t5):
    if request.param == "t5":
        return saved_t5
    network = random_network(request.param, len(tokenizer))
    return saved(network, tokenizer, saved_t5.parent / request.param)


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"input": text}) + "\n" for text in PROMPTS))
    return path


def test_a_checkpoint_of_any_family_is_loaded_as_what_it_is(folder):
    loaded = load_any_model(folder)
    assert isinstance(loaded, Model if folder.name == "t5" else AnyModel) and loaded.name == folder.name


def test_the_command_writes_a_page_for_any_family(folder, prompts, tmp_path, capsys):
    arguments = ["suitability", str(folder), "--task", str(prompts), "--max-new-tokens", "6"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"# Are early exits worth it for {folder.name}?") and "$" not in printed
    assert "prompts.jsonl" in printed and "![" not in printed
    assert printed.count("**") >= 6, "the verdict, and the best rule at each loss"
    assert main([*arguments, "--output", str(tmp_path / "page.md")]) == 0
    written = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "![" in written and (tmp_path / "page-rules.png").stat().st_size > 1000
    assert (tmp_path / "page-settled.png").exists()


ODD_PAGES = ["my page (1).md", "50%.md", "a#b?.MD", "<é>.md", "[a](b).md"]


def test_the_page_shows_its_pictures_whatever_it_is_called(saved_t5, prompts, tmp_path):
    """Before, a blank or a bracket in its name, and they were no pictures; a name with "$$" drew nothing."""
    model = saved_t5.rename(saved_t5.with_name("t5_$$ a$b$c"))
    try:
        for name in ODD_PAGES:
            suitability_page.write(
                str(model), str(prompts), limit=8, max_new_tokens=4, output=str(tmp_path / name)
            )
            written = (tmp_path / name).read_text(encoding="utf-8")
            pictures = [image.attrGet("src") for image in images(MarkdownIt().parse(written))]
            assert len(pictures) == 2 and all((tmp_path / unquote(picture)).exists() for picture in pictures)
            assert "t5_$$ a$b$c" in written
    finally:
        model.rename(saved_t5)


def images(tokens):
    for token in tokens:
        yield from images(token.children or [])
        if token.type == "image":
            yield token


def test_two_pages_of_one_name_can_be_written_at_the_same_time(tmp_path):
    """Before, both tried whether they could write there in a file of the same name, which one deleted."""

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(check_writable, [tmp_path / "page.md"] * 200))
    assert not list(tmp_path.iterdir())


def test_a_task_has_its_own_prompts():
    inputs, described = suitability_page._inputs("translation", "synthetic", "validation", 9)
    assert (
        len(inputs) == 9
        and inputs[0].startswith("translate English to French")
        and "translation" in described
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--task", "transltion"], r'did you mean "translation"\? .* or give a file'),
        (["--task", "/nowhere/prompts.jsonl"], "is neither a task nor a file"),
        (["--task", "translation", "--limit", "3"], "3 examples are too few: give at least 8"),
        (["--task", "translation", "--limit", "0"], "limit=0: give a whole number from 1 on"),
        (["--task", "translation", "--output", "page.html"], "give a Markdown file, such as page.md"),
        (["--task", "translation", "--split", "dev"], 'Unknown split "dev"'),
        (["--task", "translation", "--max-new-tokens", "0"], "max_new_tokens=0"),
        (["--task", "translation", "--max-source-tokens", "0"], "max_source_tokens=0"),
        (["--task", "translation", "--limit", "many"], "invalid int value: 'many'"),
        ([], "--task"),
    ],
)
def test_bad_input_is_one_line(saved_t5, arguments, message, capsys):
    assert main(["suitability", str(saved_t5), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error), error


@pytest.mark.parametrize("line", ['{"text": "a"}', '{"input": ""}', '{"input": 3}', '{"input": null}'])
def test_a_row_without_a_prompt_is_named(line, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input": "fine"}\n' + line + "\n")
    with pytest.raises(MeeError, match='row 2 has no text in a column "input"'):
        suitability_page._inputs(str(path), "synthetic", "validation", 10)


@pytest.mark.parametrize("family", ["gpt2", "bart"])
@pytest.mark.parametrize("words, new", [(120, 4), (40, 90)])
def test_more_tokens_than_positions_are_one_line(family, words, new, tokenizer):
    """Before, a traceback: index out of range in self."""
    any_model = AnyModel(random_network(family, len(tokenizer)), tokenizer, family)
    with pytest.raises(
        MeeError, match=f"{family} takes 96 tokens.*shorten the inputs, or lower max_new_tokens"
    ):
        trace(any_model, ["house " * words], max_new_tokens=new)


@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_inputs_beyond_the_positions_are_cut_and_the_page_says_so(family, tokenizer):
    """Before, one long input of a corpus stopped it."""
    any_model = AnyModel(random_network(family, len(tokenizer)), tokenizer, family)
    result = suitability(any_model, ["house " * 200, *PROMPTS], max_new_tokens=6)
    longest = 96 - 6 + 1 if family == "gpt2" else 96
    assert (result.cut, result.longest, result.examples) == (1, longest, len(PROMPTS) + 1)
    cut = f"1 of {len(PROMPTS) + 1} inputs were too long and cut to their first {longest} tokens"
    assert cut in suitability_page.page(result, "prompts").replace("**", "")
    assert "too long" not in suitability_page.page(replace(result, cut=0), "prompts")


def test_a_length_that_is_given_cuts_the_inputs_of_a_t5(model):
    assert suitability(model, PROMPTS, max_new_tokens=4).cut == 0
    result = suitability(model, PROMPTS, max_new_tokens=4, max_source_tokens=5)
    lengths = [len(ids) for ids in model.tokenizer(PROMPTS).input_ids]
    assert result.cut == sum(length > 5 for length in lengths) and result.longest == 5


def test_a_trace_along_references_and_a_single_layer_are_refused(model, tokenizer):
    along = trace(model, PROMPTS, ["a house"] * len(PROMPTS))
    with pytest.raises(MeeError, match="model's own output"):
        module.suitability_of(along)
    flat = build_lively("t5-deep-decoder", tokenizer, layers=1)
    with pytest.raises(MeeError, match="has one decoder layer"):
        suitability(flat, PROMPTS, max_new_tokens=4)


def test_a_file_of_prompts_has_neither_source_nor_split(prompts):
    """Before, both were passed over without a word."""
    for given in (("elsewhere", "validation"), ("synthetic", "test")):
        with pytest.raises(
            MeeError, match=r"source and split are of a task, and .* is a file: leave them out"
        ):
            suitability_page._inputs(str(prompts), *given, 9)
    upper = prompts.rename(prompts.with_suffix(".JSONL"))
    inputs, described = suitability_page._inputs(str(upper), "synthetic", "validation", 9)
    assert (len(inputs), described) == (9, "prompts.JSONL")


def test_settings_that_were_not_used_are_on_the_page(tokenizer):
    model = AnyModel(random_network("bart", len(tokenizer)), tokenizer, "bart")
    model.network.generation_config.forced_bos_token_id = 77
    with pytest.warns(UserWarning, match="bart is traced along plain greedy search"):
        result = suitability(model, PROMPTS, max_new_tokens=6)
    written = suitability_page.page(result, "prompts")
    assert "**Settings stored with the model were not used: forced_bos_token_id=77" in written
    assert "own greedy output" in written
