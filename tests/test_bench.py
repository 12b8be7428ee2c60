"""The benchmark compares equal work and reports what misses its target, however fast this machine is."""

import json
import re
import sys
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise, product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from benchmarks import decoder, peers, rules, shapes, tables, workloads
from benchmarks.__main__ import main, parts_of, timed
from benchmarks.clock import in_random_order, take_turns
from transformers import T5Config

from mee_utils import Copies, DraftPlan, ExitPolicy, MeeError
from mee_utils.common.files import PACKAGE
from mee_utils.companion.result_tables import AGAIN, BENCH, one_machine, read_timings
from mee_utils.models.costs import DecoderSizes

SIZES = replace(workloads.SHAPES["mini"], layers=6, vocabulary=300)
TINY = replace(workloads.WORKLOADS["mini"], shape="tiny", sizes=SIZES, tokens=6, source=8)


@pytest.fixture(scope="module")
def tiny():
    return workloads.Bench(TINY, 1)


@pytest.fixture(scope="module")
def agreeing():
    return workloads.Bench(replace(TINY, agreeing=True), 1)


@pytest.fixture
def stand_ins(monkeypatch):
    """Peers that compile, or need not be installed, are replaced by the one that is there."""
    monkeypatch.setattr(peers, "compiled", peers.greedy)
    forms = ("CTranslate2, float32", "CTranslate2, int8_float32")
    monkeypatch.setattr(
        peers,
        "ctranslate2_forms",
        lambda bench: {name: lambda batch: peers.greedy(bench, batch) for name in forms},
    )


@pytest.mark.parametrize("batch", [1, 3])
def test_contenders_emit_the_same_tokens(tiny, batch):
    ours = [row[0] for row in tiny.ours(batch)()]
    theirs = peers.greedy(tiny, batch)()[:, 1:].tolist()
    assert ours == theirs and all(len(row) == TINY.tokens for row in ours)


def test_an_assistant_whose_drafts_are_all_right_changes_nothing(agreeing):
    """All layers of this model predict the same."""
    plain = peers.greedy(agreeing, 1)()
    assert plain.tolist() == peers.assisted(agreeing, 2)().tolist()
    first = agreeing.forced(np.ones((1, TINY.tokens), dtype=int))()
    assert [row.token_ids for row in first] == plain[:, 1:].tolist()


def test_rows_say_how_transformers_computes_attention(tiny):
    assert tiny.network.config._attn_implementation == "sdpa"
    assert peers.with_attention(tiny, peers.GREEDY) == "transformers generate, sdpa"


def test_the_mini_shape_is_that_of_the_shipped_models():
    config = T5Config.from_pretrained(PACKAGE / "checkpoints/small/calm")
    assert DecoderSizes.of(config) == workloads.SHAPES["mini"]
    assert config.d_kv == workloads.WORKLOADS["mini"].d_kv


def test_no_rounds_are_refused():
    with pytest.raises(MeeError, match="rounds=0"):
        workloads.Bench(TINY, 0)


def test_forced_exits_are_taken(tiny):
    exits = np.random.default_rng(0).integers(1, 5, size=(3, TINY.tokens))
    rows = tiny.forced(exits)()
    assert np.array_equal([row[1] for row in rows], exits)


def test_every_part_gives_its_lines(stand_ins):
    table = pd.concat([decoder.run(part, TINY, 1) for part in decoder.PARTS])
    assert set(table[table.what == "ours"].against) == {
        "",
        "transformers generate, sdpa",
        "transformers, static cache, compiled, sdpa",
        "transformers, assistant, sdpa",
        "CTranslate2, float32",
        "CTranslate2, int8_float32",
    }
    assert set(table[table.group == "full depth"].dtype) == {"float32", "bfloat16"}
    mini = table.assign(shape="mini")
    assert decoder._matches(mini, decoder.TABLES["targets"][0][0]).sum() == 1, "whatever the attention"
    assert (table.groupby("group").size() >= 2).all() and set(table.group) == {
        "full depth",
        "exit cost",
        "one decision",
        "verified round",
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


def test_rivals_of_a_size_that_was_not_timed_now_are_kept(tmp_path, monkeypatch):
    """Before, timing the rivals whose weights are kept here dropped the lines of all others."""
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    monkeypatch.setattr(tables, "_machine", lambda device: {"processor": "A", "ctranslate2": None})
    setting = {"profile": "real", "task": "translation", "model": "vanilla", "batch": 1}

    def save(sizes, speed):
        rows = pd.DataFrame([setting | {"decoder_layers": size, "speed": speed} for size in sizes])
        path = tables.save(rows, "rivals", rules.keys_of("rivals"))
        return pd.read_csv(path)[["decoder_layers", "speed"]].values.tolist()

    assert save([4, 6], 2.0) == [[4, 2], [6, 2]]
    assert save([3, 6, 10], 3.0) == [[3, 3], [4, 2], [6, 3], [10, 3]]


def test_a_line_belongs_to_a_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    about = {"processor": "A", "torch": "1", "ctranslate2": None}
    monkeypatch.setattr(tables, "_machine", lambda device: dict(about))

    def save(shape, speed):
        columns = {"shape": [shape], "group": ["full depth"], "median": [speed], "against": [""]}
        path = tables.save(pd.DataFrame(columns), "decoder", decoder.KEYS)
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


def test_lines_of_a_gpu_have_tables_of_their_own(tmp_path, monkeypatch):
    """So that they take no CPU's place on any page."""
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    columns = {"shape": ["mini"], "group": ["full depth"], "median": [1.0], "against": [""]}
    for device, name in {"cpu": "A", "cuda:0": "a GPU"}.items():
        about = {"processor": name, "torch": "1", "ctranslate2": None}
        monkeypatch.setattr(tables, "_machine", lambda device, about=about: dict(about))
        before = {path: path.read_bytes() for path in (tmp_path / "bench").glob("*.*")}
        path = tables.save(pd.DataFrame(columns), "decoder", decoder.KEYS, device)
        assert set(pd.read_csv(path).processor) == {name}
        assert all(path.read_bytes() == content for path, content in before.items())
    assert path.parent == tmp_path / "bench" / "gpu"
    test_committed_timings_are_those_that_were_written(path.parent)


def test_what_was_timed_on_a_gpu_alone_is_read_and_else_the_cpu(tmp_path):
    wanted = pd.DataFrame({"task": ["translation"], "model": ["calm"]})
    wanted["kind"] = "verified"
    stored = wanted.assign(profile="small", speed=1.5, batch=1)
    (tmp_path / "gpu").mkdir()
    stored.assign(processor="a GPU").to_csv(tmp_path / "gpu" / "exits.csv")
    assert read_timings("verified", wanted, "small", folder=tmp_path).attrs["processor"] == "a GPU"
    stored.assign(processor="A").to_csv(tmp_path / "exits.csv")
    assert read_timings("verified", wanted, "small", folder=tmp_path).attrs["processor"] == "A"


def test_a_device_that_is_not_there_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--device", "no such device", "--part", "bandwidth"]) == 2
    assert 'device="no such device" is not available here' in capsys.readouterr().err


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
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(MeeError, match="make bench"):
        peers.ctranslate2_forms(tiny)


def test_the_types_that_ctranslate2_has_are_timed_by_the_names_of_what_it_uses(tiny, monkeypatch):
    """A type that this processor lacks is left out: it would be another one by a wrong name."""
    used = {"float32": "float32", "int8": "int8_float32"}

    def translator(path, compute_type, **_):
        return SimpleNamespace(compute_type=used[compute_type], translate_batch=None)

    peer = SimpleNamespace(get_supported_compute_types=lambda _: set(used), Translator=translator)
    converter = SimpleNamespace(
        TransformersConverter=lambda _: SimpleNamespace(convert=lambda *_, **__: None)
    )
    monkeypatch.setitem(sys.modules, "ctranslate2", peer)
    monkeypatch.setitem(sys.modules, "ctranslate2.converters", converter)
    assert list(peers.ctranslate2_forms(tiny)) == ["CTranslate2, float32", "CTranslate2, int8_float32"]


@pytest.mark.parametrize("batch", [1, 3])
def test_ctranslate2_decodes_as_many_tokens(tiny, batch):
    pytest.importorskip("ctranslate2", reason="only make bench installs it")
    for translate in peers.ctranslate2_forms(tiny).values():
        outputs = translate(batch)()
        assert [len(output.hypotheses[0]) for output in outputs] == [TINY.tokens] * batch


@pytest.mark.parametrize("part", ["reductions", "exits", "drafts"])
def test_rules_are_timed_at_what_a_notebook_found(part, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    monkeypatch.setattr(
        "mee_utils.companion.result_tables.ROOT", tmp_path
    )  # where committed results would be
    assert main(["--part", part]) == 2
    assert re.search("run make (reproduce|measure)", capsys.readouterr().err)


def test_each_part_is_named_before_it_is_timed_and_stored_before_the_next(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    monkeypatch.setattr("benchmarks.__main__.WORKLOADS", {"mini": TINY})

    def part(bench):
        print("timed")
        return [decoder.Timing("x", 1, [1.0], "s")]

    for name in ("exit cost", "bandwidth"):
        monkeypatch.setitem(decoder.PARTS, name, part)
    assert main(["--part", "bandwidth", "--part", "exit cost", "--rounds", "1"]) == 0
    lines = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["mini", "timed", "table"] * 2
    stored = pd.read_csv(tmp_path / "bench" / "decoder.csv")
    assert set(stored.group) == {"exit cost", "bandwidth"}


@pytest.mark.parametrize("profile", ["small", "real"])
def test_what_belongs_to_no_profile_is_timed_with_small(profile, monkeypatch):
    """So that `make bench` and `make bench PROFILE=real` together time everything, once."""
    done = []

    def run(part, *_):
        done.append(part)
        return pd.DataFrame({"part": [part]})

    for module in (decoder, rules):
        monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(shapes, "run", lambda *_: run("shapes"))
    options = {"profile": profile, "data": None, "shape": [], "part": [], "rounds": 1}
    options |= {"device": "cpu", "no_compiling": False}
    assert list(timed(SimpleNamespace(**options)))
    expected = [*decoder.PARTS, "shapes"] if profile == "small" else ["shapes"]
    assert done == expected * len(workloads.WORKLOADS) + [*rules.PARTS]


def test_of_ready_models_is_timed_what_needs_no_rules_and_a_line_says_what_is_not(capsys):
    assert parts_of("paper_published") == ["reductions", "exits"]
    (line,) = capsys.readouterr().out.splitlines()
    assert 'has no model "calm"' in line and line.endswith("drafts, rivals.") and "shapes" in line
    assert "published" in parts_of("paper") and not capsys.readouterr().out


class CheckpointsByTask:
    """What `rules` reads of an experiment whose models are one checkpoint a task."""

    profile = SimpleNamespace(
        name="published",
        results=SimpleNamespace(
            examples=2, test=2, max_new_tokens=4, batch_size=2, timed=2, most_candidates={}
        ),
    )
    model_names = backbones = ("base", "vanilla")

    def __init__(self, tasks):
        self.by_name = tasks

    def tasks(self, limit=None, part="held_out"):
        """Planning on what is timed would choose what is fast on it."""
        return {
            name: SimpleNamespace(name=name, inputs=[part] * len(task.inputs))
            for name, task in self.by_name.items()
        }

    def model(self, name, task):
        return SimpleNamespace(name=name, task=task, network=SimpleNamespace(float=lambda: None))


@pytest.mark.parametrize(("part", "batches"), [("reductions", [1, 32]), ("exits", [1, 8, 32])])
def test_a_task_is_timed_with_its_own_checkpoint(part, batches, monkeypatch):
    """Before, all models were loaded at once, which is refused where a model has one checkpoint a task."""
    settings = {"threshold": 0.9, "min_layer": 1, "limit": 2, "max_new_tokens": 4, "batch_size": 2}
    complete = pd.DataFrame({"model": ["base", "vanilla"], "reduction": ["unpruned"] * 2})
    monkeypatch.setattr(rules, "read_table", lambda *_: complete)
    monkeypatch.setattr(rules, "read_manifest", lambda *_: {"parameters": settings})
    planned_on = []

    def plan(model, inputs, policies, **_):
        assert policies is None or not any(policy.copies for policy in policies)
        planned_on.append(inputs)
        return DraftPlan(None, "", 1.0, 1.0, 0, 0.0)

    monkeypatch.setattr(rules, "plan_drafts", plan)
    tasks = {name: SimpleNamespace(name=name, inputs=["a"]) for name in ("translation", "summarization")}
    monkeypatch.setattr(rules, "load_tasks", lambda *_: list(tasks.values()))
    found = list(rules.PARTS[part](CheckpointsByTask(tasks)))
    assert all(inputs == ["choices"] for inputs in planned_on) and bool(planned_on) == (part == "exits")
    assert all(setting.model.task == setting.task.name for setting in found)
    keys = [(setting.model.name, setting.task.name, setting.batch) for setting in found]
    assert sorted(keys) == sorted(product(["base", "vanilla"], tasks, batches))


def test_of_each_family_one_setting_is_timed_and_it_is_chosen_without_a_clock():
    settings = rules.timed_settings("small")
    assert not settings.duplicated(["task", "kind"]).any() and (settings.flops_share >= 1).any()
    alone = settings[settings.rule != "static"]
    assert (alone.low >= rules.QUALITY).all() and alone.validation_flops.notna().all()


def test_contenders_take_turns_and_a_first_round_warms_up():
    calls = []

    def contender(name):
        def run(number):
            calls.append((name, number))
            return len(calls)

        return run

    rounds = take_turns({"a": contender("a"), "b": contender("b")}, 2)
    assert calls == [("a", -1), ("b", -1), ("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert rounds == [{"a": 3, "b": 4}, {"a": 5, "b": 6}]


def test_all_contenders_decode_a_batch_before_any_decodes_the_next_and_the_order_is_random():
    calls = []
    contenders = {name: lambda number, name=name: calls.append((name, number)) or number for name in "abcd"}
    results = in_random_order(contenders, 20)
    assert calls[:4] == [("a", -1), ("b", -1), ("c", -1), ("d", -1)]
    by_batch = [calls[start : start + 4] for start in range(4, len(calls), 4)]
    assert [{number for _, number in batch} for batch in by_batch] == [{number} for number in range(20)]
    assert all({name for name, _ in batch} == set("abcd") for batch in by_batch)
    assert len({batch[0][0] for batch in by_batch}) == 4, "each comes first in some batch"
    assert results == [dict.fromkeys("abcd", number) for number in range(20)]


def test_a_table_says_what_was_planned():
    policy = ExitPolicy(threshold=0.5, exit_layers=[2, 5], propagation="verify", max_draft=4)
    row = rules.describe_plan(DraftPlan(policy, "exits", speedup=1.2, expected=1.3, settings=9, seconds=2.0))
    assert row == {
        "drafts": "exits",
        "rule": "softmax_margin",
        "min_layer": None,
        "exit_layers": "2 5",
        "threshold": 0.5,
        "max_draft": 4,
        "expected": 1.3,
        "planning_seconds": 2.0,
    }
    plain = rules.describe_plan(DraftPlan(None, "copies", 1.0, expected=1.01, settings=9, seconds=2.0))
    assert plain == {"drafts": "", "expected": 1.01, "planning_seconds": 2.0}
    copying = ExitPolicy.copying(Copies(), 12)
    row = rules.describe_plan(DraftPlan(copying, "copies", 1.2, expected=1.3, settings=9, seconds=2.0))
    assert row["drafts"] == "copies" and row["rule"] == ""


def generation(seconds, tokens=10, samples=4):
    return SimpleNamespace(seconds=seconds, tokens=tokens, texts=["a"] * samples)


def test_a_speed_is_a_ratio_on_the_same_batches_with_an_interval_over_them():
    """A machine that slows down by half between batches does not change a ratio."""
    generations = [
        [generation(seconds), generation(seconds), generation(seconds / 2, tokens=12)]
        for seconds in (1.0, 2.0, 1.0, 4.0, 2.0)
    ]
    (row,) = rules.speeds(generations).to_dict("records")
    assert row["speed"] == pytest.approx(2.4) and row["low"] == pytest.approx(row["high"])
    assert row["samples_speed"] == pytest.approx(2.0) and row["batches"] == 5
    assert [row[name] for name in AGAIN] == pytest.approx([1, 1, 1])
    noisy = [
        [generation(1.0), generation(seconds), generation(1 / seconds)]
        for seconds in (0.8, 1.3, 1.0, 0.9, 1.2)
    ]
    (row,) = rules.speeds(noisy).to_dict("records")
    assert row["low"] < row["speed"] < row["high"] and row["again_low"] < 1 < row["again_high"]


def test_full_depth_is_timed_twice_and_not_for_each_plan_that_drafts_nothing(monkeypatch):
    decoded = []

    def out(model, inputs, policy, **_):
        decoded.append(policy)
        return generation(0.5 if policy else 1.0, samples=len(inputs))

    monkeypatch.setattr(rules, "generate", out)
    model = SimpleNamespace(network=SimpleNamespace(float=lambda: None))
    task = SimpleNamespace(inputs=["a"] * 40)
    setting = rules.Setting(model, task, None, [None, "policy", None], 8, 8, 200)
    generations = rules.timed(setting)
    assert len(generations) == 20 and {len(batch) for batch in generations} == {5}
    assert decoded.count(None) == 2 * decoded.count("policy") == 2 * (1 + 20)
    assert rules.speeds(generations).speed.tolist() == [1.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("batch", "inputs", "sizes"),
    [(1, 20, [1] * 20), (8, 20, [8] * 16), (8, None, [8, 8, 8, 6]), (32, 20, [20] * 16), (1, 5, [1] * 20)],
)
def test_every_input_is_in_a_batch_and_small_sets_are_batched_again(batch, inputs, sizes):
    task = SimpleNamespace(inputs=list(range(30)))
    batches = rules.batches_of(rules.Setting(None, task, None, [], 8, batch, inputs))
    assert [len(each) for each in batches] == sizes
    assert all(len(set(each)) == len(each) for each in batches)
    taken = {index for each in batches for index in each}
    assert taken == set(range(30 if inputs is None else inputs))


def test_rivals_are_timed_where_their_weights_are_kept(monkeypatch, capsys, t5, synthetic_tasks):
    """Each is another model at full depth, beside that of vanilla; without any, a line says what to run."""
    options = {"profile": "small", "data": None, "shape": [], "part": ["rivals"], "rounds": 1}
    options |= {"device": "cpu", "no_compiling": False}
    monkeypatch.setattr(rules, "kept_rivals", lambda profile: [])
    assert not list(timed(SimpleNamespace(**options)))
    assert "nothing to time here (rivals: make retrain PROFILE=small keeps them)" in capsys.readouterr().out
    decoded = []

    def out(model, inputs, policy, **_):
        decoded.append((model.name, policy))
        return SimpleNamespace(seconds=0.5 if model is t5 else 1.0, tokens=10, texts=inputs)

    monkeypatch.setattr(rules, "generate", out)
    monkeypatch.setattr(rules, "kept_rivals", lambda profile: ["shallow"])
    monkeypatch.setattr(rules, "load_rival", lambda profile, job: t5)
    monkeypatch.setattr(rules, "load_tasks", lambda *_: [synthetic_tasks["translation"][:20]])
    ((table, part, keys),) = timed(SimpleNamespace(**options))
    assert set(decoded) == {("vanilla", None), (t5.name, None)}
    assert part == "rivals" and set(keys) <= set(table) and list(table.batch) == [1, 8, 32]
    assert (table.decoder_layers == t5.layers).all() and (table.samples_speed == 2).all()


# ---- exits of the trained models in decoders of other sizes


def script_of(batch, seed=0):
    draw, size = np.random.default_rng(seed), (batch, TINY.tokens)
    ends = draw.random(size) < 0.2
    return shapes.Script(draw.integers(1, SIZES.layers + 1, size), draw.random(size) < 0.7, ends)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("most", [1, 2, 8])
def test_drafts_are_made_and_kept_as_the_script_says(agreeing, batch, most):
    script = script_of(batch)
    policy = shapes.ExitPolicy(min_layer=1, propagation="verify", max_draft=most)
    rows = shapes.verified(agreeing, shapes.played(policy, script, agreeing, SIZES.layers), script)()
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


@pytest.mark.parametrize("exits", [False, True])
def test_copies_are_made_and_kept_as_the_script_says(agreeing, exits):
    """Alone, and before exits that draft a token each at layer 2, all of them right."""
    batch, draw = 2, np.random.default_rng(4)
    left = TINY.tokens - 1 - np.arange(TINY.tokens)  # a token of the last layer's stands behind a copy
    copied = np.minimum(draw.integers(0, 4, (batch, TINY.tokens)), left)
    right = np.minimum(draw.integers(0, 4, copied.shape), copied)
    at_two = np.full(copied.shape, 2)
    script = shapes.Script(at_two, at_two > 0, at_two < 0, copied, right)
    policy = shapes.ExitPolicy.copying(Copies(), SIZES.layers)
    if exits:
        policy = shapes.ExitPolicy(min_layer=1, propagation="verify", max_draft=1, copies=Copies())
    rows = shapes.verified(agreeing, shapes.played(policy, script, agreeing, SIZES.layers), script)()
    for number, row in enumerate(rows):
        layers, rounds = [], 0
        while len(layers) < TINY.tokens:
            rounds += 1
            many = right[number, len(layers)]
            no_copy = 2 if exits and not copied[number, len(layers)] else SIZES.layers
            layers += [0] * many + [no_copy]
        assert row.exit_layers.tolist() == layers and row.drafts.rounds == rounds
        assert row.token_ids == shapes.known_outputs(agreeing, batch, TINY.tokens)[number].tolist()


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
    bench = SimpleNamespace(layers=24)
    layers = [np.array([1, 12]), np.array([7])]
    right = [np.array([True, False]), np.array([False])]
    script = shapes.Script.of(shapes.Outputs(layers, right, 12), bench, (2, 5))
    played = list(zip(script.layers.ravel(), script.right.ravel(), script.ends.ravel(), strict=True))
    assert sorted(set(played)) == [(2, True, False), (14, False, True), (24, False, True)]
    assert all(after[0] == 24 for before, after in pairwise(played) if before[0] == 2)


@pytest.fixture(scope="module", autouse=True)
def few_outputs():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "EXAMPLES", 3)
        yield
    shapes.trained_of.cache_clear()


def test_a_played_rule_that_counts_layers_listens_to_the_script_too(tiny):
    exits = np.array([[2, SIZES.layers, 4, 3, 6, 5]])
    script = shapes.Script(exits, exits > 0, exits == 0)
    vote = shapes.ExitPolicy("vote", threshold=2, min_layer=1)
    rows = tiny.ours(1, shapes.played(vote, script, tiny, SIZES.layers), TINY.tokens)()
    assert np.array_equal(rows[0].exit_layers, exits[0])


def test_shapes_are_timed_with_what_the_trained_models_did(monkeypatch):
    monkeypatch.setattr(shapes, "BATCHES", (1, 2))
    monkeypatch.setattr(shapes, "TOKENS", {1: 6, 2: 6})
    monkeypatch.setattr(shapes, "SCRIPTS", {1: 3, 2: 3})
    monkeypatch.setattr(shapes, "worth_timing", lambda ranked: ranked[:1])
    monkeypatch.setattr(shapes, "fastest", lambda bench, batch, plans: plans[0])
    workload = replace(TINY, sizes=replace(SIZES, layers=12))
    found = shapes.run("small", None, workload)
    assert {*shapes.KEYS, *AGAIN, "low", "high", "weights"} <= set(found) and (found.speed > 0).all()
    assert set(found.task) == {"question_answering", "summarization", "translation"}
    alone, in_batches = found[found.batch == 1], found[found.batch == 2]
    drafts = {"copies", "verified", "planned"}
    assert {"fixed layer", "one layer", *drafts} <= set(alone.kind)
    assert set(in_batches.kind) == {"fixed layer", "pruned", *drafts}
    assert not found.duplicated(list(shapes.KEYS)).any()


def test_shallow_shapes_are_refused():
    with pytest.raises(MeeError, match="tiny has fewer layers"):
        shapes.run("small", None, TINY)


def test_the_mini_shape_has_the_sizes_of_the_profiles_own_models(monkeypatch):
    """There the simulation can be compared with the models themselves."""
    timed = []
    none = pd.DataFrame({"speed": []})
    monkeypatch.setattr(shapes, "timings", lambda model, bench: timed.append(bench.workload) or [none])
    mini = replace(workloads.WORKLOADS["mini"], sizes=replace(SIZES, layers=30))
    assert shapes.run("small", None, mini).empty, "a profile may have nothing to time"
    assert timed[0].sizes == workloads.SHAPES["mini"]


def test_no_drafts_where_the_fastest_is_not_confirmed_on_other_outputs(agreeing, monkeypatch):
    """Drafts that are right in the outputs of the trial, and wrong in those of the confirmation."""
    right = np.ones(TINY.tokens, dtype=bool)
    drafts = shapes.Outputs([np.ones(TINY.tokens, dtype=int)] * 2, [right, right], SIZES.layers)
    policy = ExitPolicy(min_layer=1, propagation="verify", max_draft=3)
    choices = [shapes.Drafting(shapes.Setting(policy, 2.0), drafts)]
    monkeypatch.setattr(shapes, "TOKENS", {1: TINY.tokens})
    seconds = {0: 1.0, shapes.TRIAL_SEED: 0.5, shapes.CONFIRMING_SEED: 0.99}

    def run_of(drafting, bench, batch, seed=0):
        return shapes.CONFIRMING_SEED if seed >= shapes.CONFIRMING_SEED else shapes.TRIAL_SEED

    monkeypatch.setattr(shapes.Drafting, "run", run_of)
    monkeypatch.setattr(shapes, "seconds_of", lambda run, device: seconds.get(run, 1.0))
    monkeypatch.setattr(type(agreeing), "ours", lambda *_, **__: 0)
    assert shapes.fastest(agreeing, 1, choices) is None
    seconds[shapes.CONFIRMING_SEED] = 0.6
    assert shapes.fastest(agreeing, 1, choices) is choices[0]
    assert shapes.fastest(agreeing, 1, []) is None
