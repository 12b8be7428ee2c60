"""The training loop: what is logged, kept and printed, and that interrupted runs end as whole ones do."""

import itertools
from random import Random

import pytest
import torch
from conftest import FAMILIES, build_network
from transformers.optimization import get_wsd_schedule

from mee_utils.companion.training import loop
from mee_utils.companion.training.batches import pad_pairs, repeated
from mee_utils.companion.training.loop import Schedule, layer_losses, train_backbone
from mee_utils.companion.training.mini import set_dropout
from mee_utils.models import checkpoints
from mee_utils.models.objectives import Objective, cross_entropy
from mee_utils.models.states import compute_logits

PAIRS = [([5 + i % 20, 9, 1], [5 + i % 20, 1]) for i in range(60)]


def many(rounds):
    return repeated(PAIRS, rounds * len(PAIRS), Random(0))


class Interrupted(Exception):
    pass


@pytest.mark.parametrize(("muon", "rate"), [(True, 0.02), (False, 5e-3)])
def test_a_run_learns_and_logs_every_layer(tmp_path, muon, rate):
    network = build_network("t5", 40)
    before = layer_losses(network, [pad_pairs(PAIRS[:20], 0)])
    schedule = Schedule(rate, 0.0, 100, muon=muon)
    curve = train_backbone(network, Objective("calm"), many(6), PAIRS[:20], schedule, tmp_path)
    after = layer_losses(network, [pad_pairs(PAIRS[:20], 0)])
    assert all(a < b - 0.5 for a, b in zip(after, before, strict=True))
    assert curve.layer_cross_entropy[0]["cross_entropy"] == before
    assert curve.layer_cross_entropy[-1] == {"step": curve.steps, "cross_entropy": after}
    assert curve.loss[-1]["step"] <= curve.steps and curve.minutes >= 0
    steps = [row["step"] for row in curve.layer_cross_entropy]
    intervals = {later - earlier for earlier, later in itertools.pairwise(steps)}
    assert steps[0] == 0 and len(intervals) == 1 and len(steps) > min(18, loop.MIN_EVALUATIONS)


@pytest.fixture
def steps_taken(monkeypatch):
    """The steps whose loss was computed; `stop_at` of it interrupts a run there."""

    class Steps(list):
        stop_at = None

    steps = Steps()
    original = loop.batch_loss

    def batch_loss(network, objective, batch, step, half):
        if step == steps.stop_at:
            raise Interrupted
        steps.append(step)
        return original(network, objective, batch, step, half)

    monkeypatch.setattr(loop, "batch_loss", batch_loss)
    return steps


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize(("stop_at", "goes_on_at"), [(0, 0), (11, 8)])
def test_an_interrupted_run_ends_where_a_whole_one_does(
    tmp_path, monkeypatch, steps_taken, stop_at, goes_on_at, decay
):
    """With drawn layers, dropout, and a decay too, after which the best state so far is what counts."""
    monkeypatch.setattr(loop, "MIN_EVALUATIONS", 5)

    def run(folder):
        network = build_network("t5", 40, seed=3)
        set_dropout(network, 0.2)
        objective = Objective("calm", intermediate="one")
        schedule = Schedule(0.02, decay, 60)
        curve = train_backbone(network, objective, many(4), PAIRS[:20], schedule, folder)
        return network, curve

    whole, whole_curve = run(tmp_path / "whole")
    assert steps_taken == list(range(whole_curve.steps)) and whole_curve.steps == 20

    steps_taken.stop_at = stop_at
    with pytest.raises(Interrupted):
        run(tmp_path / "cut")
    steps_taken.clear()
    steps_taken.stop_at = None
    resumed, curve = run(tmp_path / "cut")
    assert steps_taken == list(range(goes_on_at, curve.steps)), "it went on, and did not begin again"
    assert same_weights(whole, resumed)
    assert curve.layer_cross_entropy == whole_curve.layer_cross_entropy
    assert curve.loss == whole_curve.loss

    steps_taken.clear()
    again, curve = run(tmp_path / "cut")  # as a stage that had ended when a later one was interrupted
    assert not steps_taken and curve.layer_cross_entropy == whole_curve.layer_cross_entropy
    assert same_weights(resumed, again)


def test_a_run_that_is_killed_while_it_writes_checkpoints_ends_where_a_whole_one_does(tmp_path, monkeypatch):
    """The best weights may then be from after the last checkpoint: they are found and stored once more."""
    monkeypatch.setattr(loop, "MIN_EVALUATIONS", 5)
    saved = []
    original = loop._Run.save

    def killed(run):
        if len(saved) == 2:
            raise Interrupted
        saved.append(run)
        original(run)

    def run(folder):
        network = build_network("t5", 40)
        train_backbone(network, Objective("calm"), many(4), PAIRS[:20], Schedule(0.02, 0.5, 60), folder)
        return network

    whole = run(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(loop._Run, "save", killed)
        with pytest.raises(Interrupted):
            run(tmp_path / "cut")
    assert same_weights(whole, run(tmp_path / "cut"))


def same_weights(network, other):
    return all(map(torch.equal, network.parameters(), other.parameters()))


def test_the_loss_is_a_mean_since_the_last_row_when_a_run_was_interrupted_between_two(tmp_path, monkeypatch):
    """Evaluations, and so checkpoints, come every 9 steps here, rows of the loss every 2."""
    monkeypatch.setattr(loop, "MIN_EVALUATIONS", 2)
    monkeypatch.setattr(loop, "batches_of", lambda pairs, tokens, seed: [PAIRS[:3]] * 18)
    original = loop.batch_loss
    curves = []
    for stop_at in (None, 12):

        def batch_loss(network, objective, batch, step, half, stop_at=stop_at):
            if step == stop_at:
                raise Interrupted
            return original(network, objective, batch, step, half)

        monkeypatch.setattr(loop, "batch_loss", batch_loss)
        options = (Objective("vanilla"), [], PAIRS[:4], Schedule(0.02, 0.0, 60), tmp_path / str(stop_at))
        if stop_at:
            with pytest.raises(Interrupted):
                train_backbone(build_network("t5", 40), *options)
            monkeypatch.setattr(loop, "batch_loss", original)
        curves.append(train_backbone(build_network("t5", 40), *options))
    whole, resumed = curves
    assert [row["step"] for row in whole.loss] == list(range(2, 19, 2))
    assert [row["step"] for row in whole.layer_cross_entropy] == [0, 9, 18]
    assert resumed.loss == whole.loss


@pytest.mark.parametrize(
    ("objective", "decay", "kept"), [("vanilla", 0.8, 2), ("vanilla", 0.0, -1), ("calm", 0.8, 3)]
)
def test_with_a_decay_the_state_that_did_best_on_the_held_out_pairs_is_kept(
    tmp_path, monkeypatch, objective, decay, kept
):
    """By what the objective asks of each layer; what came before the first step is no candidate."""
    seen = []

    def scripted(network, held_out):
        seen.append([weight.detach().clone() for weight in network.parameters()])
        first_layer = 50.0 if len(seen) == 3 else 1.0 - len(seen) / 100
        return [first_layer, {1: 0.5, 3: 0.6, 4: 0.7}.get(len(seen), 0.7 + len(seen))]

    monkeypatch.setattr(loop, "layer_losses", scripted)
    network = build_network("t5", 40)
    schedule = Schedule(0.02, decay, 60)
    curve = train_backbone(network, Objective(objective), many(2), PAIRS[:20], schedule, tmp_path)
    assert len(seen) == len(curve.layer_cross_entropy) > 5
    assert torch.tensor([1e-40]).mul(1.5) > 0, "numbers near zero are flushed during training only"
    same = [all(map(torch.equal, state, network.parameters())) for state in seen]
    assert [index for index, one in enumerate(same) if one] == [range(len(seen))[kept]]


@pytest.mark.parametrize("count", [1, 3, 19, 20, 21, 39, 250, 3999, 4000, 4001, 4100, 9999, 24567])
def test_runs_are_evaluated_every_200_steps_or_more_often_and_at_the_end(count):
    interval = loop.evaluation_interval(count)
    evaluations = count // interval
    assert 1 <= interval <= 200
    assert evaluations >= min(count, 20)
    assert 0 <= count - evaluations * interval < interval, "hardly any batch is left out"


@pytest.mark.parametrize(("decay", "constant"), [(0.8, 0.2), (0.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("steps", [4000, 37])
def test_the_rate_rises_stays_and_falls_as_transformers_has_it(decay, constant, steps):
    rates = [loop.rate_factor(step, steps, decay) for step in range(steps)]
    warmup = min(200, steps // 4)
    assert rates[0] == 0 and rates[warmup // 2] == pytest.approx(0.5, abs=0.06) and max(rates) == 1
    at_peak = rates.count(1.0)
    assert at_peak == pytest.approx(constant * (steps - warmup), abs=2)
    assert rates[-1] == pytest.approx(0, abs=0.06) if decay else rates[-1] == 1.0

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    decay_steps = round(decay * (steps - warmup))
    schedule = get_wsd_schedule(optimizer, warmup, decay_steps, num_training_steps=steps, decay_type="linear")
    for rate in rates:
        assert optimizer.param_groups[0]["lr"] == rate
        optimizer.step()
        schedule.step()


def test_every_group_of_parameters_follows_the_schedule(tmp_path, monkeypatch):
    rates = []
    original = loop.MuonAdam.step

    def step(optimizer):
        rates.append([group["lr"] / group["peak_lr"] for group in optimizer.param_groups])
        original(optimizer)

    monkeypatch.setattr(loop.MuonAdam, "step", step)
    schedule = Schedule(0.02, 0.5, 100)
    network = build_network("t5", 40)
    curve = train_backbone(network, Objective("vanilla"), PAIRS, PAIRS[:4], schedule, tmp_path)
    expected = [loop.rate_factor(step, curve.steps, 0.5) for step in range(curve.steps)]
    assert rates == [pytest.approx([factor] * 5) for factor in expected]


def test_a_step_is_clipped(tmp_path, monkeypatch):
    norms = []
    original = loop.MuonAdam.step

    def step(optimizer):
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        norms.append(float(torch.nn.utils.get_total_norm([weight.grad for weight in weights])))
        original(optimizer)

    monkeypatch.setattr(loop.MuonAdam, "step", step)
    network = build_network("t5", 40)
    train_backbone(network, Objective("calm"), PAIRS, PAIRS[:4], Schedule(0.02, 0.5, 100), tmp_path)
    assert max(norms) <= 1.0001 and max(norms) == pytest.approx(1, abs=1e-3)


def test_the_loss_of_a_layer_is_a_mean_over_tokens_however_they_are_batched():
    network = build_network("t5", 40)
    pairs = [([5, 6, 7, 1], [8, 1]), ([9, 1], [10, 11, 12, 13, 14, 15, 1])]
    together = layer_losses(network, [pad_pairs(pairs, 0)])
    alone = layer_losses(network, [pad_pairs([pair], 0) for pair in pairs])
    assert alone == pytest.approx(together, abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_gives_the_loss_of_transformers_and_the_states_of_every_layer(family):
    network = build_network(family, 40)
    batch = pad_pairs([([5, 6, 7, 1], [8, 1]), ([9, 1], [10, 11, 12, 1])], 0)
    states, logits = loop.states_and_logits(network, batch)
    assert torch.allclose(cross_entropy(logits, batch["labels"]), network(**batch).loss, atol=1e-6)
    assert len(states) == len(network.get_decoder().block)
    assert torch.allclose(compute_logits(network, states[-1]), logits, atol=1e-6)


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("flags", [{}, {"avx512_bf16": False, "avx2": True}, {"amx_bf16": True}])
def test_half_precision_is_for_processors_that_multiply_it(monkeypatch, flags, half):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)
    checkpoints.fast_bfloat16.cache_clear()
    monkeypatch.setattr(loop, "objective_loss", lambda *given: torch.is_autocast_enabled("cpu"))
    network = build_network("t5", 40)
    autocast = loop.batch_loss(network, Objective("vanilla"), pad_pairs(PAIRS[:2], 0), 0, half)
    assert autocast == (half and "amx_bf16" in flags)
    assert checkpoints.fast_bfloat16("cuda")
    checkpoints.fast_bfloat16.cache_clear()


def test_in_half_precision_the_losses_are_nearly_those_of_single(tmp_path):
    batch = pad_pairs(PAIRS[:8], 0)
    network = build_network("t5", 40)
    losses = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            states, logits = loop.states_and_logits(network, batch)
            losses.append(float(cross_entropy(logits, batch["labels"]).detach()))
        assert states[-1].dtype == torch.float32  # the residual stream keeps its precision
    assert losses[0] == pytest.approx(losses[1], rel=2e-2) and losses[0] != losses[1]


def test_every_evaluation_prints_one_line_of_how_far_a_run_is(tmp_path, capsys):
    network = build_network("t5", 40)
    schedule = Schedule(0.02, 0.0, 100)
    curve = train_backbone(network, Objective("vanilla"), PAIRS, PAIRS[:20], schedule, tmp_path, name="calm")
    lines = capsys.readouterr().out.splitlines()
    steps = curve.steps
    rows = curve.layer_cross_entropy
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        held_out = f"step {row['step']} of {steps}: held out {row['cross_entropy'][-1]:.3f} nats a token, "
        remaining = "0 minutes left" if row["step"] else "begun"
        assert line.removeprefix(held_out) == f"{remaining} (calm)", line


def test_objectives_are_told_the_step(tmp_path, monkeypatch):
    steps = []
    original = loop.objective_loss

    def objective_loss(objective, network, states, logits, labels, step):
        steps.append(step)
        return original(objective, network, states, logits, labels, step)

    monkeypatch.setattr(loop, "objective_loss", objective_loss)
    network = build_network("t5", 40)
    schedule = Schedule(0.003, 0.0, 100)
    curve = train_backbone(network, Objective("alternating"), PAIRS, PAIRS[:20], schedule, tmp_path)
    assert steps == list(range(curve.steps)) and len(steps) > 2


def test_training_sets_its_own_seed(tmp_path):
    networks = []
    for seed in (1, 2):
        network = build_network("t5", 40)
        torch.manual_seed(seed)
        objective = Objective("calm", intermediate="one")
        schedule = Schedule(5e-3, 0.0, 60)
        train_backbone(network, objective, PAIRS, PAIRS[:20], schedule, tmp_path / str(seed))
        networks.append(network)
    assert same_weights(*networks)
