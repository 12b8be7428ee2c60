"""A reader's rule as a row of the rules' table: measured as the study's are, ranked, with clear errors."""

import re
from pathlib import Path

import pandas as pd
import pytest

from mee_utils import Measure, MeeError, load_model, save_classifier
from mee_utils.companion import measure, rule_row
from mee_utils.companion.catalogue import MAIN_MODEL, RULES, Rule
from mee_utils.companion.cli import main
from mee_utils.companion.experiment import Experiment
from mee_utils.companion.profiles import load_profile
from mee_utils.companion.running.jobs import Job
from mee_utils.exits.classifiers import new_classifier
from mee_utils.exits.measures import SoftmaxMargin

ROOT = Path(__file__).parent.parent
TASK = "translation"
MODULE = '''
from mee_utils import Measure

class Certainty(Measure):
    """exp(-entropy) by another name."""

    readout = True

    def confidence(self, state):
        return 2.718281828459045 ** -state.entropy

class Settled(Measure):
    """Decides alone."""

    has_threshold = False

    def confidence(self, state):
        return (state.similarity > 0.99) * 1.0

class Gap(Measure):
    """Of logits, which a trace does not keep."""

    range = (0.0, float("inf"))
    readout = True

    def confidence(self, state):
        return state.logits.amax(-1) - state.logits.mean(-1)

class MinusEntropy(Measure):
    """Never positive."""

    range = (float("-inf"), 0.0)
    default_threshold = -0.5
    readout = True

    def confidence(self, state):
        return -state.entropy

class Misspelt(Measure):
    def confidence(self, state):
        return state.similarty

class Options(Measure):
    def __init__(self, power):
        self.power = power

    def confidence(self, state):
        return state.similarity ** self.power

class Broken(Measure):
    def __init__(self):
        raise RuntimeError("no weights")

cubed = Options(3)
number = 3
'''


@pytest.fixture
def few(monkeypatch):
    """A short search."""
    monkeypatch.setattr(measure, "LEAST_SETTINGS", 4)
    monkeypatch.setattr(measure, "SEARCHED_BOUNDS", (("loss", 0.05), ("lost", 0.01), ("saved", 0.4)))


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of a reader's rules, in the folder in which the command is called."""
    (tmp_path / "readers_rules.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "readers_rules"


def margin(**options):
    return Rule(rule_row.ROW, "margin", family="one layer", measure=SoftmaxMargin(), **options)


@pytest.mark.parametrize("rule, options", [("softmax_margin", {}), ("fixed", {"pruning": "fixed"})])
def test_a_rule_of_the_study_gets_the_settings_that_it_has_there(rule, options, few, monkeypatch):
    """The same examples, thresholds, losses and FLOPs, example for example."""
    monkeypatch.setattr(measure.RuleDecoder, "_load_classifiers", lambda decoder: {})
    profile = load_profile("small")
    sizes = {"validation": 12, "test": 12, "candidates": 8}
    profile = profile.model_copy(update={"results": profile.results.model_copy(update=sizes)})
    experiment = Experiment(None, profile)
    study = measure.RuleDecoder(experiment, Job("settings", MAIN_MODEL, TASK)).measured(rule)
    ours = rule_row.RowDecoder(experiment, TASK, margin(**options), None).measured(rule_row.ROW)
    assert set(study.part) == {"validation", "test"} and study.threshold.nunique() >= 4
    pd.testing.assert_frame_equal(study.drop(columns="rule"), ours.drop(columns="rule"))


def test_a_quick_look_prints_numbers_with_intervals_without_ranks(few, module, capsys, monkeypatch):
    """Ranks are left out: the rules of the page were measured on more examples."""
    reported = []
    report = rule_row.report

    def seen(*given):
        reported.append(given)
        return report(*given)

    monkeypatch.setattr(rule_row, "report", seen)
    assert main(["row", f"{module}:Certainty", "--task", TASK, "--limit", "12", "--name", "my rule"]) == 0
    printed = capsys.readouterr().out
    assert "A quick look" in printed and "12 test examples" in printed and "cores" in printed
    assert re.search(r"\d+% \(\d+% to \d+%\)", printed) and "| rank |" not in printed
    ((*given, limit),) = reported
    assert limit == 12 and re.search(r"\| rank \| \d+ of \d+ \|", report(*given, None))


@pytest.mark.parametrize("name", ["Settled", "cubed", "Gap", "MinusEntropy"])
def test_a_rule_without_a_threshold_an_instance_of_logits_or_below_0_is_measured_too(name, few, module):
    text = rule_row.row(f"{module}:{name}", "small", tasks=[TASK], limit=6)
    tried = int(re.search(r"settings tried on validation examples: (\d+)", text)[1])
    assert tried == 1 if name == "Settled" else tried >= 3


def test_a_class_is_found_by_the_file_of_its_module_too(module, tmp_path, monkeypatch):
    """Before, the path was taken for the name of a module: No module named 'some/folder/my_rules'."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for path in (f"../{module}.py", str(tmp_path / f"{module}.py")):
        assert rule_row.find_rule(f"{path}:Settled", lambda: None).name == "Settled"


def test_a_mistake_in_the_class_shows_before_anything_is_measured(module, monkeypatch):
    monkeypatch.setattr(rule_row.RowDecoder, "measured", None)
    with pytest.raises(MeeError, match=r'has no "similarty".*exits/measures.py lists'):
        rule_row.row(f"{module}:Misspelt", "small", tasks=[TASK], limit=2)


def test_a_rank_counts_the_rules_that_are_cheaper_on_the_task():
    stored = pd.DataFrame({"task": [TASK, TASK, "summarization"], "flops_share": [0.5, 0.9, 0.1]})
    ranks = [rule_row._rank(share, TASK, stored) for share in (0.4, 0.5, 0.7, 1.2)]
    assert ranks == ["1 of 3", "1 of 3", "2 of 3", "3 of 3"]
    assert rule_row._rank(0.4, TASK, None) == "no stored rules"


@pytest.mark.parametrize("name", ["random", "rule.v2", "my-rules"])
def test_a_file_may_have_any_name(name, tmp_path, monkeypatch):
    """Before, `random.py` was taken for Python's own module, and `rule.v2` for a module in a package."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{name}.py").write_text(MODULE)
    assert rule_row.find_rule(f"{name}.py:Settled", lambda: None).name == "Settled"


def test_a_file_that_ends_the_program_is_one_clear_line(tmp_path):
    (tmp_path / "script.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(MeeError, match=r"script.py cannot be imported \(SystemExit: 3\)"):
        rule_row.find_rule(f"{tmp_path / 'script.py'}:Rule", lambda: None)


@pytest.mark.parametrize(
    "name, message",
    [
        ("Nothing", 'has no "Nothing"; give module:Class'),
        ("number", "is no Measure: derive the class from mee_utils.Measure"),
        ("Options", "cannot be made .*'power'.*name an instance"),
        ("Broken", r"cannot be made \(no weights\)"),
        ("", "is neither a checkpoint nor a class"),
    ],
)
def test_what_is_no_rule_is_named(name, message, module):
    with pytest.raises(MeeError, match=message):
        rule_row.find_rule(f"{module}:{name}", lambda: None)


def test_a_measure_of_the_package_goes_by_its_name():
    assert rule_row.find_rule("softmax_margin", lambda: None) == SoftmaxMargin()


def test_the_last_layer_scores_all_entries_as_under_the_rules_of_the_page(few, monkeypatch):
    """Before, it scored the few that are kept, and the row was not comparable with theirs."""
    seen = []

    class Stopped(Exception):
        pass

    def decoder(experiment, task, rule, limit):
        seen.append(rule)
        raise Stopped

    monkeypatch.setattr(rule_row, "RowDecoder", decoder)
    with pytest.raises(Stopped):
        rule_row.row("softmax_margin", "small", tasks=[TASK], pruning="fixed")
    (rule,) = seen
    ours = rule_row.policy_of(rule, 0.5, load_profile("small"))
    of_the_page = RULES["patience"].policy(6, load_profile("small").results.model_dump())
    assert ours.pruning == of_the_page.pruning == "fixed"
    assert ours.prune_last_layer is of_the_page.prune_last_layer is False


def test_a_file_with_classes_is_no_checkpoint(tmp_path):
    path = tmp_path / "my_rules.py"
    path.touch()
    with pytest.raises(MeeError, match=r"name one, as in .*my_rules\.py:MyMeasure"):
        rule_row.find_rule(str(path), lambda: None)


@pytest.mark.parametrize(
    "source, message",
    [
        ("no_such_module:X", "no_such_module cannot be imported .*give module:Class or file.py:Class"),
        ("/nowhere/classifier", "is neither a checkpoint nor a class"),
        ("softmax_margins", "is neither a checkpoint nor a class"),
    ],
)
def test_what_is_no_source_is_named(source, message):
    with pytest.raises(MeeError, match=message):
        rule_row.find_rule(source, lambda: None)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--task", "translaton"], 'did you mean "translation"'),
        (["--limit", "0"], "limit=0: give a whole number from 2 on"),
        (["--pruning", "fixed"], "needs a measure that looks at probabilities"),
        (["--profile", "none"], "none"),
    ],
)
def test_bad_options_are_one_line(options, message, module, capsys):
    assert main(["row", f"{module}:Settled", *options]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and re.search(message, error), error


def test_a_checkpoint_is_a_file_or_the_only_one_in_a_folder(tmp_path):
    model = load_model(ROOT / "mee_utils" / "checkpoints" / "small" / "calm")
    classifier = new_classifier("linear_classifier", model.network.config.d_model)
    with pytest.raises(MeeError, match=r"has 0 files \*.safetensors \(none\)"):
        rule_row.find_rule(str(tmp_path), lambda: model)
    save_classifier(classifier, tmp_path / "one.safetensors", model.fingerprint)
    for source in (tmp_path, tmp_path / "one.safetensors"):
        loaded = rule_row.find_rule(str(source), lambda: model)
        assert isinstance(loaded, Measure) and loaded.key() == classifier.key()
    save_classifier(classifier, tmp_path / "two.safetensors", model.fingerprint)
    with pytest.raises(MeeError, match=r"has 2 files .*name the one to measure"):
        rule_row.find_rule(str(tmp_path), lambda: model)
