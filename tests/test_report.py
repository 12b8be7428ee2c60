"""README, RESULTS.md and the pages say what the stored tables say."""

from pathlib import Path

import pandas as pd
import pytest

from mee_utils import MeeError
from mee_utils.companion.address import places, repository
from mee_utils.companion.reporting import report, report_tables, sentences

ROOT = Path(__file__).parent.parent
PAGES = report.pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_its_text_and_the_tables_give(name):
    assert (ROOT / name).read_text(encoding="utf-8") == PAGES[name], "run make results"


def test_no_sentence_is_broken():
    assert list(sentences.broken(PAGES)) == []


@pytest.mark.parametrize(
    "said, holds, told",
    [("CALM settles first", False, "is not true"), ("nobody wrote this", True, "does not say")],
)
def test_a_sentence_that_is_false_or_gone_is_named_and_nothing_is_written(monkeypatch, said, holds, told):
    from mee_utils.companion.reporting.sentences import readme

    monkeypatch.setattr(readme, "sentences", lambda real: [(said, holds)])
    monkeypatch.setattr(report, "pages", lambda: {"README.md": "CALM settles first."})
    monkeypatch.setattr(report, "complete_file", lambda path: pytest.fail("a page was written"))
    with pytest.raises(MeeError, match=told) as error:
        report.update()
    assert said in str(error.value)


def test_an_unknown_number_of_a_page_is_an_error(monkeypatch):
    monkeypatch.setattr(report, "numbers", dict)
    with pytest.raises(Exception, match="is undefined"):
        report.page("findings")


def test_every_statement_stands_in_the_ledger_once():
    stored = pd.read_csv(ROOT / "figures/real/08_results/ledger.csv")
    text = PAGES["figures/results/ledger.md"]
    for statement in stored.statement:
        assert text.count(f"| {statement} *") == 1, statement


def test_flops_that_save_nothing_are_a_dash():
    assert [report_tables._spent(share) for share in (0.634, 1.0, float("nan"))] == ["63", "–", "–"]


def test_the_smallest_shallow_decoder_is_one_that_keeps_the_score_on_every_task():
    chosen = report_tables.shallow_decoders()
    assert (chosen.kept >= 0.99).all() and chosen.groupby("data").decoder_layers.nunique().max() == 1


def test_the_address_of_the_repository_is_set_in_one_place(monkeypatch):
    assert repository() == "" and "<address of this repository>" in PAGES["README.md"]
    settings = '[project]\n[project.urls]\nRepository = "https://github.com/Someone/exits/"\n'
    monkeypatch.setattr(report, "repository", lambda: repository(settings))
    readme = report.readme()
    assert "git clone --depth 1 https://github.com/Someone/exits early-exit" in readme
    assert "[site](https://someone.github.io/exits/)" in readme
    assert "https://mybinder.org/v2/gh/Someone/exits/HEAD" in readme
    assert 'repository-code: "https://github.com/Someone/exits"' in report.citation()
    assert '# mee-utils = { git = "https://github.com/Someone/exits" }' in report.try_script()
    assert places("https://codeberg.org/someone/exits") == {}
