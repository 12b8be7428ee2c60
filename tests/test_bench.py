"""The benchmark compares equal work and reports what misses its target, however fast this machine is."""

import json
import re
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from benchmarks import decoder as bench
from benchmarks import rules, shapes, tables
from benchmarks.__main__ import main
from benchmarks.clock import take_turns

from mee_utils import DraftPlan, ExitPolicy, MeeError
from mee_utils.study.result_tables import BENCH, missed, one_machine

SIZES = replace(bench.SHAPES["mini"], layers=6, vocabulary=300)
TINY = replace(bench.WORKLOADS["mini"], shape="tiny", sizes=SIZES, tokens=6, source=8)


@pytest.fixture(scope="module")
def tiny():
    return bench.Bench(TINY, 1)


@pytest.mark.parametrize("batch", [1, 3])
def test_contenders_emit_the_same_tokens(tiny, batch):
    ours = [row[0] for row in tiny.ours(batch)()]
    theirs = tiny.generate(batch)()[:, 1:].tolist()
    assert ours == theirs and all(len(row) == TINY.tokens for row in ours)


def test_no_rounds_are_refused():
    with pytest.raises(MeeError, match="rounds=0"):
        bench.Bench(TINY, 0)


def test_forced_exits_are_taken(tiny):
    exits = np.random.default_rng(0).integers(1, 5, size=(3, TINY.tokens))
    rows = tiny.forced(exits)()
    assert np.array_equal([row[1] for row in rows], exits)


def test_every_part_gives_its_lines(tiny, monkeypatch):
    for peer in ("compiled_peer", "ctranslate2_peer"):  # one compiles, the other need not be installed
        monkeypatch.setattr(bench, peer, lambda tiny, batch: tiny.generate(batch))
    table = pd.concat([tiny.table(part) for part in bench.PARTS])
    assert (table.groupby("group").size() >= 2).all() and set(table.group) == {
        "full depth",
        "exit cost",
        "one decision",
        "spread exits",
        "bandwidth",
    }
    assert np.isfinite(table[["median", "lowest", "highest"]]).all().all()
    assert (table.lowest <= table["median"]).all() and (table["median"] <= table.highest).all()
    assert {"softmax_margin", "max_probability", "hidden_similarity", "rising_top1"} <= set(
        table[table.group == "one decision"].what
    )
    weights = table[table.what == "weights a token"]["median"].iloc[0]
    d = SIZES.d_model
    inner = SIZES.inner
    heads = SIZES.inner // TINY.d_kv
    layers = SIZES.layers * (6 * d * inner + 2 * d * SIZES.d_ff + 3 * d)
    expected = layers + 32 * heads + SIZES.vocabulary * d
    assert weights == pytest.approx(4 * expected / 1e6)


def test_what_misses_its_target_is_named():
    table = pd.DataFrame(
        {
            "what": list("abcd"),
            "median": [2.1, 1.9, 1.1, 1.2],
            "target": [">= 2.0", ">= 2.0", "<= 1.15", "<= 1.15"],
        }
    )
    assert list(missed(table).what) == ["b", "d"]
    assert missed(table.assign(target="")).empty


def test_a_line_belongs_to_a_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    about = {"processor": "A", "torch": "1", "ctranslate2": None}
    monkeypatch.setattr(tables, "_machine", lambda: dict(about))

    def save(shape, speed):
        columns = {"shape": [shape], "group": ["full depth"], "median": [speed], "against": [""]}
        path = tables.save(pd.DataFrame(columns))
        return [line.split(",")[:2] + line.split(",")[3:4] for line in path.read_text().splitlines()[1:]]

    assert save("t5-base", 1.23456) == [["A", "t5-base", "1.235"]]
    assert save("mini", 2.0) == [["A", "mini", "2"], ["A", "t5-base", "1.235"]], "other shapes stay"
    assert save("t5-base", 3.0) == [["A", "mini", "2"], ["A", "t5-base", "3"]]
    about["processor"] = "B"
    assert save("mini", 9.0) == [["B", "mini", "9"], ["A", "mini", "2"], ["A", "t5-base", "3"]], (
        "and machines"
    )
    about["torch"] = "2"
    assert save("t5-large", 4.0) == [["B", "t5-large", "4"], ["A", "mini", "2"], ["A", "t5-base", "3"]]
    files = {path.name for path in (tmp_path / "bench").iterdir()}
    assert files == {"decoder.csv", "machines.json", tables.DIGESTS}
    test_committed_timings_are_those_that_were_written(tmp_path / "bench")
    machines = json.loads((tmp_path / "bench" / "machines.json").read_text())["decoder"]
    assert {name: known["torch"] for name, known in machines.items()} == {"B": "2", "A": "1"}
    shown = one_machine(pd.read_csv(tmp_path / "bench" / "decoder.csv"))
    assert set(shown.processor) == {"A"}, "the machine that timed most"


def test_committed_timings_are_those_that_were_written(folder=BENCH):
    digests = {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.csv")}
    assert json.loads((folder / tables.DIGESTS).read_text())["files"] == digests


def test_a_machine_is_described():
    about = tables._machine()
    assert about["processor"] and about["cores"] and about["torch"]


def test_an_unknown_shape_is_one_line(capsys):
    assert main(["--shape", "t5-bse"]) == 2
    assert 'did you mean "t5-base"' in capsys.readouterr().err


def test_without_the_peer_the_error_says_what_to_do(tiny, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ctranslate2", None)
    with pytest.raises(MeeError, match="make bench"):
        bench.ctranslate2_peer(tiny, 1)


def test_every_part_has_its_code(tiny, monkeypatch):
    """Each part can be asked for by name and gives lines of that name."""
    monkeypatch.setattr(bench, "WORKLOADS", {"tiny": TINY})
    for part in set(bench.PARTS) - {"full depth"}:
        found = bench.run(part, (), 1, lambda line: None)
        assert set(found.group) == {part}


@pytest.mark.parametrize("part", ["reductions", "results", "drafts"])
def test_rules_are_timed_at_what_a_notebook_found(part, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    monkeypatch.setattr("mee_utils.study.result_tables.ROOT", tmp_path)  # where committed results would be
    assert main(["--part", part]) == 2
    assert re.search("run make (reproduce|measure)", capsys.readouterr().err)


def test_progress_is_shown_as_work_proceeds(monkeypatch):
    monkeypatch.setattr(bench, "WORKLOADS", {"tiny": TINY})
    events = []

    def part(name):
        return lambda self: events.append(name) or [bench.Timing("x", 1, [1.0], "s")]

    monkeypatch.setattr(bench, "PARTS", {name: part(name) for name in ("exit cost", "bandwidth")})
    for name in bench.PARTS:
        bench.run(name, (), 1, lambda line: events.append(line.split(": ")[1] + " begins"))
    assert events == ["exit cost begins", "exit cost", "bandwidth begins", "bandwidth"]


def test_contenders_take_turns_and_a_first_round_warms_up():
    calls = []

    def contender(name):
        def run(number):
            calls.append((name, number))
            return len(calls)

        return run

    rounds = take_turns({"a": contender("a"), "b": contender("b")}, 2)
    assert calls == [("a", 0), ("b", 0), ("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert rounds == [{"a": 3, "b": 4}, {"a": 5, "b": 6}]


def test_a_table_says_what_was_planned():
    policy = ExitPolicy(threshold=0.5, exit_layers=[2, 5], propagation="verify", max_draft=4)
    row = rules.describe_plan(DraftPlan(policy, speedup=1.2, expected=1.3, settings=9))
    assert row == {
        "rule": "softmax_margin",
        "min_layer": None,
        "exit_layers": "2 5",
        "threshold": 0.5,
        "max_draft": 4,
        "expected": 1.3,
    }
    plain = rules.describe_plan(DraftPlan(None, speedup=1.0, expected=1.01, settings=9))
    assert list(plain) == list(row) and plain["expected"] == 1.01 and plain["exit_layers"] == ""


def test_speeds_are_ratios_within_a_round(monkeypatch):
    """A machine that slows down by half between rounds does not change a ratio."""
    seconds = iter([9, 9, 1.0, 0.5, 2.0, 1.0])  # warm-up, round 1, round 2; full depth and policy in turn

    def out(*_, **__):
        return SimpleNamespace(seconds=next(seconds), tokens=10)

    monkeypatch.setattr(rules, "generate", out)
    model = SimpleNamespace(network=SimpleNamespace(float=lambda: None))
    setting = rules.Setting(model, SimpleNamespace(inputs=["a"] * 4), None, ["policy"], 8, (1,))
    found = rules.speeds(setting, 1, 2).iloc[0]
    assert found.speed == found.ranked == found.lowest == found.highest == found.samples_speed == 2
    assert found.seconds == 0.75 and found.tokens_per_second == 15


def test_the_speed_of_the_fastest_comes_from_inputs_on_which_it_was_not_chosen(monkeypatch):
    """Each round has inputs of its own; one half of the rounds ranks the rules, the other is reported."""
    given, seconds = [], iter([1.0, 1.0] + 5 * [1.0, 0.25, 1.0, 0.5])

    def out(_, inputs, policy, **__):
        given.extend(inputs if policy is None else [])
        return SimpleNamespace(seconds=next(seconds), tokens=10)

    monkeypatch.setattr(rules, "generate", out)
    model = SimpleNamespace(network=SimpleNamespace(float=lambda: None))
    setting = rules.Setting(model, SimpleNamespace(inputs=list(range(30))), None, ["policy"], 8, (1,), True)
    found = rules.speeds(setting, 1, 3).iloc[0]
    assert sorted(given[3:]) == list(range(30)) and given[:3] == given[3:6] == [0, 10, 20]  # a warm-up first
    assert (found.ranked, found.speed, found.lowest, found.highest) == (4, 2, 2, 2)


# ---- exits of the trained models in decoders of other sizes


def script_of(tiny, batch, seed=0):
    draw, size = np.random.default_rng(seed), (batch, TINY.tokens)
    ends = draw.random(size) < 0.2
    return shapes.Script(draw.integers(1, SIZES.layers + 1, size), draw.random(size) < 0.7, ends)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("most", [1, 2, 8])
def test_drafts_are_made_and_kept_as_the_script_says(tiny, batch, most):
    script = script_of(tiny, batch)
    policy = shapes.ExitPolicy(min_layer=1, propagation="verify", max_draft=most)
    rows = shapes.verified(tiny, shapes.played(policy, script, tiny, SIZES.layers), script)()
    kept = script.right & (script.layers < SIZES.layers)
    assert np.array_equal([row.exit_layers for row in rows], np.where(kept, script.layers, SIZES.layers))
    for number, row in enumerate(rows):
        assert row.drafts.accepted == kept[number].sum()
        rounds, length = 0, 0
        for right, layer, end in zip(kept[number], script.layers[number], script.ends[number], strict=True):
            rounds, length = rounds + (length == 0), length + 1
            if layer == SIZES.layers or not right or end or length == most:
                length = 0
        assert row.drafts.rounds == rounds


def test_a_played_policy_decides_at_the_layers_that_stand_for_its_own_and_listens_to_the_script(tiny):
    seen = []

    class Watched(shapes.ExitPolicy("max_probability").measure.__class__):
        def confidence(self, state):
            seen.append(state.layer)
            return super().confidence(state)

    exits = np.full((1, TINY.tokens), SIZES.layers)
    script = shapes.Script(exits, exits > 0, exits == 0)
    rows = tiny.ours(1, shapes.played(shapes.ExitPolicy(Watched(), min_layer=1), script, tiny, 2))()
    assert seen == [SIZES.layers // 2] * TINY.tokens and np.array_equal(rows[0].exit_layers, exits[0])


def test_outputs_are_played_at_the_same_relative_depth():
    bench = SimpleNamespace(layers=24, workload=SimpleNamespace(tokens=5))
    layers, right = [np.array([1, 12]), np.array([7])], [np.array([True, False]), np.array([False])]
    script = shapes.Script.of(bench, 2, layers, right, 12)
    played = list(zip(script.layers.ravel(), script.right.ravel(), script.ends.ravel(), strict=True))
    assert sorted(set(played)) == [(2, True, False), (14, False, True), (24, False, True)]
    assert all(after[0] == 24 for before, after in pairwise(played) if before[0] == 2)


@pytest.mark.parametrize("part", list(shapes.PARTS))
def test_shapes_are_timed_with_what_the_trained_models_did(monkeypatch, part):
    sizes = replace(SIZES, layers=12)
    monkeypatch.setattr(shapes, "WORKLOADS", {"tiny": replace(TINY, sizes=sizes)})
    monkeypatch.setattr(shapes, "EXAMPLES", 3)
    monkeypatch.setattr(shapes, "BATCHES", (1,))
    monkeypatch.setattr(shapes, "ctranslate2_peer", lambda bench, batch: bench.generate(batch))
    found = shapes.run(part, "small", None, [], 1, lambda line: None)
    assert {"speed", "lowest", "highest", "shape", "weights"} <= set(found) and (found.speed > 0).all()
    assert set(found.task.dropna()) == {"question_answering", "summarization", "translation"}
    if part == "lossless shapes":
        assert list(found.rule[3:]) == ["transformers generate", "CTranslate2", "transformers, assistant"]


def test_shallow_shapes_are_refused(monkeypatch):
    monkeypatch.setattr(shapes, "WORKLOADS", {"tiny": TINY})
    with pytest.raises(MeeError, match="tiny has fewer layers"):
        shapes.run("lossy shapes", "small", None, ["tiny"], 1, print)
