"""The explorer shows what decoding does; objects show themselves; figures of the papers are one call."""

import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from conftest import INPUTS, LENGTH, build_lively
from vl_convert import javascript_bundle, vegalite_to_svg

from mee_utils import (
    AnyModel,
    Copies,
    ExitPolicy,
    MeeError,
    explore,
    explore_trace,
    generate,
    load_model,
    load_task,
    trace,
)
from mee_utils.analysis.explorer import Explorer
from mee_utils.analysis.explorer_runs import AGREES, ALL, DIFFERS
from mee_utils.common.files import PACKAGE
from mee_utils.common.html import SHOWN, shaded, table
from mee_utils.companion import drawing, explorer_page

NASTY = "summarize: </script><img src=x> & $spec"
POLICIES = {
    "margin": ExitPolicy(min_layer=1),
    "similarity": ExitPolicy("hidden_similarity", min_layer=1),
    "rising": ExitPolicy("rising_top1", min_layer=1),
    "patience": ExitPolicy("patience", min_layer=1),
    "pruned": ExitPolicy(pruning="fixed", top_k=8, min_layer=1),
}
VERIFY = {"propagation": "verify", "max_draft": 3}
WAYS = {"taken": {}, "verified": VERIFY, "verified, copies first": VERIFY | {"copies": Copies()}}


@pytest.fixture(scope="module")
def model(tokenizer):
    return build_lively("t5", tokenizer)


@pytest.fixture(scope="module")
def explorer(model):
    inputs = [*INPUTS[:2], NASTY]
    return explore(model, inputs, POLICIES, levels=4, max_new_tokens=LENGTH, max_draft=3)


def runs_of(explorer, exits):
    return [(run, at) for run in explorer.runs if run["exits"] == exits for at in run["thresholds"]]


def test_every_level_of_every_choice_is_one_run(explorer):
    levels = {}
    for run in explorer.runs:
        key = run["rule"], run["sentence"], run["exits"]
        levels[key] = levels.get(key, []) + run["levels"]
    assert len(levels) == len(POLICIES) * 3 * len(WAYS)
    assert all(found == [0, 1, 2, 3] for found in levels.values())


@pytest.mark.parametrize("exits", WAYS)
def test_runs_are_what_generate_gives_at_their_thresholds(model, explorer, exits):
    settings = WAYS[exits]
    for run, threshold in runs_of(explorer, exits):
        policy = replace(POLICIES[run["rule"]].at_threshold(threshold), **settings)
        found, full = (generate(model, run["input"], p, max_new_tokens=LENGTH) for p in (policy, None))
        assert (run["text"], run["full"]) == (found.texts[0], full.texts[0])
        assert run["same"] == (found.token_ids == full.token_ids) and (run["same"] or exits == "taken")
        assert run["flops"] == pytest.approx(found.flops[0] / full.flops[0], abs=1e-4)
        assert run["mean_exit_layer"] == pytest.approx(found.mean_exit_layer, abs=0.01)
        if exits == "taken":
            assert run["layer"] == found.exit_layers[0].tolist() and run["drafts"] is None
        else:
            kept = np.where(np.array(run["fate"]) == DIFFERS, model.layers, run["layer"])
            assert kept.tolist() == found.exit_layers[0].tolist()
            assert run["drafts"] == [found.drafts[0].verified, found.drafts[0].accepted]


def test_some_exits_are_wrong_here_and_some_tokens_do_not_exit(explorer):
    fates = {fate for run in explorer.runs for fate in run["fate"]}
    assert len(fates) == 3 and any(not run["same"] for run in explorer.runs)


@pytest.mark.parametrize("exits", WAYS)
def test_a_token_leaves_at_the_first_layer_that_is_sure_enough(explorer, model, exits):
    for run, threshold in runs_of(explorer, exits):
        for layer, fate, sure in zip(run["layer"], run["fate"], run["confidence"], strict=True):
            assert all(value is None or value <= threshold + 1e-4 for value in sure[: max(layer - 1, 0)])
            assert (layer == model.layers) == (fate == ALL)
            assert fate == ALL or layer == 0 or sure[layer - 1] >= threshold - 1e-4
            assert not any(sure[layer:])  # layers behind an exit decide nothing


def test_the_layer_that_is_left_says_the_token(explorer):
    for run, _ in runs_of(explorer, "taken"):
        exited = zip(run["said"], run["layer"], strict=True)
        assert [said[layer - 1] for said, layer in exited] == run["token"]


def test_nothing_exits_at_the_last_level_of_a_confidence(explorer):
    for run in explorer.runs:
        if run["rule"] != "patience" and 3 in run["levels"]:
            copied = run["exits"] == "verified, copies first"
            fates = {fate for fate, layer in zip(run["fate"], run["layer"], strict=True) if layer}
            assert (fates == {ALL} or copied) and (run["same"] or run["rule"] == "pruned")
            assert copied or 0 not in run["layer"]


def test_some_copied_tokens_are_kept(explorer):
    kept = [
        run["fate"][place] == AGREES
        for run, _ in runs_of(explorer, "verified, copies first")
        for place, layer in enumerate(run["layer"])
        if layer == 0
    ]
    assert any(kept)


@pytest.mark.parametrize("level", [0, 3])
def test_the_views_follow_the_slider(explorer, level):
    spec = explorer.spec
    given = {"level": level, "rule": "similarity", "sentence": 2}
    spec["params"] = [p | {"value": given.get(p["name"], p["value"])} for p in spec["params"]]
    shown = re.findall(r"<text[^>]*>([^<]*)<", vegalite_to_svg(json.dumps(spec)))
    (run,) = (
        run
        for run in explorer.runs
        if (run["rule"], run["sentence"], run["exits"]) == ("similarity", 2, "taken")
        and level in run["levels"]
    )
    threshold = run["thresholds"][run["levels"].index(level)]
    (line,) = (text for text in shown if text.startswith("threshold ") and "mean exit" in text)
    assert (
        f"threshold {threshold:.4f}".rstrip("0").rstrip(".") in line.replace("−", "-")
        and f"{run['flops']:.0%}" in line
    )
    labels = [f"{n}  {token}" for n, token in enumerate(run["token"], 1)]
    marked = [text.replace("  ≠", "").replace("&lt;", "<").replace("&gt;", ">") for text in shown]
    assert [text for text in marked if text in labels] == labels
    assert sum("≠" in text for text in shown) == run["fate"].count(DIFFERS)


def test_the_page_asks_nobody_and_escapes_what_it_is_given(explorer, tmp_path):
    for path, message in (
        (None, "path=None: give the path of a file"),
        (tmp_path, "is a folder: give a file"),
    ):
        with pytest.raises(MeeError, match=message):
            explorer.save(path)
    html = explorer.save(tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert javascript_bundle() in html and not list(tmp_path.glob("**/*.partial*"))
    own = html.replace(javascript_bundle(), "")
    assert not re.search(
        r"https?:|//\w|\bsrc=|<link|@import|<img", own.replace("\\u003c", "&lt;").replace("src=x", "")
    )
    assert own.count("</script>") == 2 and "\\u003cimg" in own
    assert "<img" not in explorer._repr_html_() and explorer._repr_html_().startswith("<iframe srcdoc=")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("",), "must be a text that is not empty"),
        ((["a"] * 17,), "17 sentences are more than a page shows: give at most 16"),
        (("a", "margin"), "give an ExitPolicy"),
        (("a", {"margin": "x"}), "give an ExitPolicy"),
        (("a", ExitPolicy("static", min_layer=2)), "has no threshold to choose"),
        (("a", ExitPolicy(min_layer=9)), "lower min_layer"),
    ],
)
def test_a_mistake_is_one_line(model, arguments, says):
    with pytest.raises(MeeError, match=says) as raised:
        explore(model, *arguments)
    assert "\n" not in str(raised.value)


def test_levels_and_model_are_checked(model):
    for call in (lambda: explore(model, "a", levels=1), lambda: explore("calm", "a")):
        with pytest.raises(MeeError):
            call()


def test_the_page_shows_our_own_sentences_and_exits_that_are_wrong(tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    monkeypatch.setattr(explorer_page, "MODELS", ("calm",))
    monkeypatch.setattr(explorer_page, "EXPLORED", ("softmax_margin",))
    monkeypatch.setattr(explorer_page, "explore", partial(explore, levels=3))
    pages = []
    monkeypatch.setattr(explorer_page, "Explorer", lambda runs: pages.append(runs) or Explorer(runs))
    (tmp_path / "build" / "site").mkdir(parents=True)
    page = explorer_page.write()
    assert page == tmp_path / "build" / "site" / "explorer.html"
    shown = page.read_text(encoding="utf-8")
    for name, sentences in explorer_page.SENTENCES.items():
        assert name in shown and len(sentences) >= 2
    of_first = [run for run in pages[0] if run["input"] == explorer_page.SENTENCES["translation"][0]]
    assert any("Deux hommes réparent le toit" in run["text"] for run in of_first)
    assert {run["same"] for run in of_first if run["exits"] == "taken"} == {True, False}


def test_objects_show_themselves(model):
    task = load_task("translation", limit=SHOWN + 1)
    task.inputs[0] = NASTY
    policy = ExitPolicy("softmax_margin", threshold=0.5, min_layer=2)
    found = generate(model, task.inputs[:3], policy, max_new_tokens=LENGTH)
    for thing in (model, task, policy, found, trace(model, task.inputs[:2], max_new_tokens=LENGTH)):
        shown = thing._repr_html_()
        assert len(repr(thing)) < 200 and "\n" not in repr(thing) and "<img" not in shown
        assert shown.count("<table>") == shown.count("</table>") == 1
    assert "and 1 more" in task._repr_html_() and "&lt;img src=x&gt;" in task._repr_html_()
    assert "from layer 2 on" in policy._repr_html_() and "0.5" in policy._repr_html_()
    titles = re.findall(r'title="layer (\d+)"', found._repr_html_())
    assert list(map(int, titles)) == np.concatenate(found.exit_layers).tolist()


def test_markup_in_a_text_is_escaped():
    assert shaded("<b>", 0.0, '"') == shaded("<b>", 0).replace('title=""', 'title="&quot;"')
    assert "<b>" not in table([("<b>", shaded("<b>", 1.0))], ("<b>",), "<b>")


def test_the_papers_figures_are_one_call_for_an_own_model(tokenizer):
    models, task = [load_model(PACKAGE / "checkpoints" / "small" / "calm")], load_task("translation", limit=4)
    found = [trace(models[0], task.inputs, task.targets)]
    axes = {
        drawing.draw_settled: (found[0],),
        drawing.draw_confidence: (found * 2,),
        drawing.draw_predictions: (found, models[0]),
        drawing.draw_reliability: (found,),
        drawing.draw_front: (models[0], task, {"softmax_margin": ExitPolicy(min_layer=2)}),
    }
    panels = {draw.__name__: len(draw(*given).axes) for draw, given in axes.items()}
    assert panels == {
        "draw_settled": 1,
        "draw_confidence": 1,
        "draw_predictions": 3,
        "draw_reliability": 3,
        "draw_front": 1,
    }


# ---- a trace of any model


TRACED_RULES = {name: POLICIES[name] for name in ("margin", "similarity", "rising", "patience")}


@pytest.fixture(scope="module")
def replayed(model):
    """The same T5 as a model that is not decoded with exits."""
    any_model = AnyModel(model.network, model.tokenizer, model.name)
    return explore(
        any_model, [*INPUTS[:2], NASTY], TRACED_RULES, levels=4, max_new_tokens=LENGTH, max_draft=3
    )


def test_verified_exits_of_a_trace_are_those_of_decoding(replayed, explorer, model):
    """Rounds, drafts and layers exactly; FLOPs but for tokens behind a wrong draft."""
    estimates = []
    for run, threshold in runs_of(replayed, "verified"):
        policy = replace(TRACED_RULES[run["rule"]].at_threshold(threshold), propagation="verify", max_draft=3)
        decoded = generate(model, run["input"], policy, max_new_tokens=LENGTH)
        full = generate(model, run["input"], max_new_tokens=LENGTH)
        assert run["text"] == run["full"] == decoded.texts[0] and run["same"]
        assert run["drafts"] == [decoded.drafts[0].verified, decoded.drafts[0].accepted]
        assert run["mean_exit_layer"] == pytest.approx(decoded.mean_exit_layer, abs=0.01)
        share = decoded.flops[0] / full.flops[0]
        if run["drafts"][0] == run["drafts"][1]:
            assert run["flops"] == pytest.approx(share, abs=1e-4)
        else:
            estimates.append(run["flops"] / share)
    assert len(estimates) > 5 and np.mean(estimates) == pytest.approx(1, abs=0.2), estimates


def test_exits_of_a_trace_are_those_of_decoding_up_to_the_first_other_token(replayed, model):
    for run, threshold in runs_of(replayed, "replayed"):
        policy = replace(TRACED_RULES[run["rule"]].at_threshold(threshold), propagation="parallel")
        decoded = generate(model, run["input"], policy, max_new_tokens=LENGTH)
        agrees = [fate != DIFFERS for fate in run["fate"]]
        until = agrees.index(False) + 1 if False in agrees else len(agrees)
        assert run["layer"][:until] == decoded.exit_layers[0].tolist()[:until]
        assert run["same"] == all(agrees)
        if run["same"]:
            assert run["text"] == decoded.texts[0] == run["full"]


def test_the_page_of_a_trace_draws(replayed):
    assert {fate for run in replayed.runs for fate in run["fate"]} >= {DIFFERS, ALL}
    assert len({run["exits"] for run in replayed.runs}) == 2
    assert vegalite_to_svg(replayed.spec).startswith("<svg")


def test_a_stored_trace_needs_its_tokenizer_alone(replayed, model):
    traced = trace(model, [*INPUTS[:2], NASTY], max_new_tokens=LENGTH)
    found = explore_trace(traced, model.tokenizer, TRACED_RULES, levels=4, max_draft=3)
    shown = ("rule", "exits", "thresholds", "layer", "text", "flops")
    assert [[run[name] for name in shown] for run in found.runs] == [
        [run[name] for name in shown] for run in replayed.runs
    ]


def test_what_a_trace_cannot_show_is_one_line(model):
    along = trace(model, INPUTS[:2], ["a house", "no"])
    with pytest.raises(MeeError, match="trace of the model's own output"):
        explore_trace(along, model.tokenizer)
    traced = trace(model, INPUTS[:2], max_new_tokens=LENGTH)
    with pytest.raises(MeeError, match="This rule looks at states"):
        explore_trace(traced, model.tokenizer, POLICIES["pruned"])
    with pytest.raises(MeeError, match="levels=1"):
        explore_trace(traced, model.tokenizer, levels=1)
    with pytest.raises(MeeError, match="17 sentences are more than a page shows"):
        explore(AnyModel(model.network, model.tokenizer, "any"), ["house"] * 17)
