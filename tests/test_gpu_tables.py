"""What was timed on a GPU is a section of its own, beside the CPU's lines; nothing where none was timed."""

import shutil

import pandas as pd
import pytest

from mee_utils.companion import gpu_tables, result_tables, stored_tables
from mee_utils.companion.result_tables import BENCH, GPU, MACHINES
from mee_utils.companion.stored_tables import StoredTables

NAME = "a GPU of ours"


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """The committed tables of CPUs alone, in another folder."""
    folder = tmp_path / "bench"
    shutil.copytree(BENCH, folder, ignore=shutil.ignore_patterns(GPU))
    for module in (result_tables, stored_tables, gpu_tables):
        monkeypatch.setattr(module, "BENCH", folder)
    return folder


@pytest.fixture
def with_gpu(bench):
    """The same, and a GPU that timed what the CPUs did, in other numbers."""
    (bench / GPU).mkdir()
    for name in ("decoder", "shapes"):
        table = pd.read_csv(bench / f"{name}.csv", keep_default_na=False)
        table = result_tables.one_machine(table[table["shape"] == "t5-large"]).assign(processor=NAME)
        table.to_csv(bench / GPU / f"{name}.csv", index=False)
    machine = {NAME: {"cores": 16, "torch": "2.11.0", "cuda": "13.0"}}
    (bench / GPU / MACHINES).write_text(pd.Series({"decoder": machine, "shapes": machine}).to_json())
    return bench


def test_nothing_is_said_where_no_gpu_was_timed(bench):
    stored = StoredTables()
    assert gpu_tables.sentence(stored) == "" and gpu_tables.on_gpu(stored).empty
    assert gpu_tables.verified_on_gpu() == {}


def test_the_section_has_a_few_lines_beside_the_same_of_the_cpu(with_gpu):
    stored = StoredTables()
    table = gpu_tables.on_gpu(stored)
    assert 8 <= len(table) <= 12 and list(table.columns[-2:]) == ["GPU", "CPU"]
    assert not table.duplicated(["what", "dtype", "batch"]).any()
    assert set(table.what) >= {"full depth", "exits at half depth", *gpu_tables.DECISIONS.values()}
    assert table.CPU.notna().all()
    sentence = gpu_tables.sentence(stored)
    assert NAME in sentence and "layers" in sentence and "memory bandwidth" in sentence
    assert f"{NAME} (torch 2.11.0)" in stored.sources() and "bench/gpu/decoder.csv" in stored.sources()


def test_no_other_table_reads_a_line_of_a_gpu(with_gpu):
    stored = StoredTables()
    for group in ("full depth", "one decision", "exit cost", "spread exits", "bandwidth"):
        assert NAME not in set(stored.decoder_bench(group, every_machine=True).processor)
    for table in (stored.shapes_bench(), stored.lossless_bench(), stored.missed_targets()):
        assert NAME not in set(table.processor)
    assert NAME not in stored.sources()


def test_what_a_gpu_did_not_time_is_not_spoken_of(with_gpu):
    path = with_gpu / GPU / "decoder.csv"
    table = pd.read_csv(path, keep_default_na=False)
    table[table.group == "full depth"].to_csv(path, index=False)
    sentence = gpu_tables.sentence(StoredTables())
    assert NAME in sentence and "half depth" not in sentence
    assert "decision" not in sentence and "memory" not in sentence


def test_only_a_decoder_that_leaves_bandwidth_unused_is_limited_by_the_host(with_gpu):
    path = with_gpu / GPU / "decoder.csv"
    table = pd.read_csv(path, keep_default_na=False)
    ours = (table.unit == "of the limit") & (table.what == "ours")
    for share, waits in ((0.04, True), (0.8, False)):
        table.assign(median=table["median"].mask(ours, share)).to_csv(path, index=False)
        assert ("kernels" in gpu_tables.sentence(StoredTables())) == waits


def test_the_section_says_what_verified_exits_would_gain_there(with_gpu):
    path = with_gpu / GPU / "shapes.csv"
    table = pd.read_csv(path, keep_default_na=False)
    played = (table.profile == "small") & (table.part == "lossless shapes")
    numbers = {"speed": 2.5, "lowest": 1.5, "highest": 3.0}
    table = table.assign(**{name: table[name].mask(played, value) for name, value in numbers.items()})
    table.to_csv(path, index=False)
    simulated = gpu_tables.verified_on_gpu()
    assert simulated["least"] == simulated["most"] == 2.5
    assert simulated["faster_in_batches"] == simulated["cases"] == 6
    assert "2.50 times as fast as full depth" in gpu_tables.sentence(StoredTables())
    slower = played & (table.batch > 1)
    table.assign(lowest=table.lowest.mask(slower, 0.9)).to_csv(path, index=False)
    assert gpu_tables.verified_on_gpu()["faster_in_batches"] == 0
    assert "in none of 6 cases" in gpu_tables.sentence(StoredTables())
    table[~played].to_csv(path, index=False)
    assert "imulated" not in gpu_tables.sentence(StoredTables())
