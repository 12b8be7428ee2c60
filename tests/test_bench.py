"""The benchmark compares equal work, and reports what misses its target. Nothing here depends on how fast this machine is."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from mee_utils import CompanionError, bench
from mee_utils.__main__ import main

TINY = replace(bench.SHAPES["mini"], name="tiny", layers=4, vocabulary=300, tokens=6, source=8)


@pytest.fixture(scope="module")
def tiny():
    return bench.Bench(TINY, 1)


@pytest.mark.parametrize("batch", [1, 3])
def test_contenders_emit_the_same_tokens(tiny, batch):
    ours = [row[0] for row in tiny.ours(batch)()]
    theirs = tiny.generate(batch)()[:, 1:].tolist()
    assert ours == theirs and all(len(row) == TINY.tokens for row in ours)


def test_no_rounds_are_refused():
    with pytest.raises(CompanionError, match="rounds=0"):
        bench.Bench(TINY, 0)


def test_forced_exits_are_taken(tiny):
    exits = np.random.default_rng(0).integers(1, 5, size=(3, TINY.tokens))
    rows = tiny.ours(3, tiny.forced(exits))()
    assert np.array_equal([row[1] for row in rows], exits)


def test_every_part_gives_its_lines(tiny):
    rows = bench.full_depth(tiny, 2, {"transformers generate": tiny.generate(2)}, ">= 2.0")
    rows += bench.exit_cost(tiny) + bench.measure_cost(tiny) + bench.decision_cost(tiny) + bench.spread_exits(tiny, 4) + bench.bandwidth(tiny)
    table = pd.DataFrame(rows)
    assert (table.groupby("group").size() >= 2).all() and set(table.group) == {
        "full depth", "exit cost", "measure cost", "one decision", "spread exits", "bandwidth"
    }  # fmt: skip
    assert np.isfinite(table[["median", "lowest", "highest"]]).all().all()
    assert (table.lowest <= table["median"]).all() and (table["median"] <= table.highest).all()
    assert {"softmax_margin", "max_probability", "hidden_similarity", "rising_top1"} <= set(table[table.group == "measure cost"].what)
    weights = table[table.what == "weights a token"]["median"].iloc[0]
    d, inner = TINY.d_model, TINY.d_kv * TINY.heads
    expected = TINY.layers * (6 * d * inner + 2 * d * TINY.d_ff + 3 * d) + 32 * TINY.heads + TINY.vocabulary * d
    assert weights == pytest.approx(4 * expected / 1e6)


def test_what_misses_its_target_is_named():
    table = pd.DataFrame({"what": list("abcd"), "median": [2.1, 1.9, 1.1, 1.2], "target": [">= 2.0", ">= 2.0", "<= 1.15", "<= 1.15"]})
    assert list(bench.missed(table).what) == ["b", "d"]
    assert bench.missed(table.assign(target="")).empty


def test_the_table_is_stored_beside_the_machine(tmp_path):
    columns = {"group": ["full depth"], "against": [""], "target": [""]}
    path = bench.save(pd.DataFrame({"shape": ["t5-base"], "median": [1.23456], **columns}), tmp_path / "bench")
    assert path.read_text() == "shape,median,group,against,target\nt5-base,1.235,full depth,,\n"
    bench.save(pd.DataFrame({"shape": ["mini"], "median": [2.0], **columns}), tmp_path / "bench")
    bench.save(pd.DataFrame({"shape": ["t5-base"], "median": [3.0], **columns}), tmp_path / "bench")
    assert path.read_text() == "shape,median,group,against,target\nmini,2,full depth,,\nt5-base,3,full depth,,\n", "other shapes keep their lines"
    (tmp_path / "bench" / "machine.json").write_text('{"processor": "another"}')
    bench.save(pd.DataFrame({"shape": ["mini"], "median": [2.0], **columns}), tmp_path / "bench")
    assert "t5-base" not in path.read_text(), "lines of another machine are not kept"
    about = json.loads((tmp_path / "bench" / "machine.json").read_text())
    assert about["cores"] and about["torch"] and {p.name for p in path.parent.iterdir()} == {"decoder.csv", "machine.json"}


def test_an_unknown_shape_is_one_line(capsys):
    assert main(["bench", "--shape", "t5-bse"]) == 2
    assert 'did you mean "t5-base"' in capsys.readouterr().err


def test_without_the_peer_the_error_says_what_to_do(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ctranslate2", None)
    with pytest.raises(CompanionError, match="make bench"):
        bench.ctranslate2_peer(tiny, 1, tmp_path)


def test_every_part_has_its_code(tiny, monkeypatch):
    """Each part can be asked for by name and gives lines of that name."""
    monkeypatch.setattr(bench, "SHAPES", {"tiny": TINY})
    for part in set(bench.PARTS) - {"reductions", "results", "growth", "full depth"}:
        found = bench.run(rounds=1, peers=False, progress=lambda line: None, parts=[part])
        assert set(found.group) == {part}


@pytest.mark.parametrize("part", ["reductions", "results"])
def test_rules_are_timed_at_what_a_notebook_found(part, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MEE_OUTPUT", str(tmp_path))
    monkeypatch.setattr("mee_utils.stored.PACKAGE", tmp_path / "mee_utils")  # where committed results would be
    assert main(["bench", "--part", part]) == 2
    assert re.search("first|make reproduce", capsys.readouterr().err)
