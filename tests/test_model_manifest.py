"""What manifests say of a model: exact match by form of question, and the first layer that is safe."""

import pytest

from mee_utils import load_task, trace
from mee_utils.companion.inputs import is_trained, load_profile_model, manifest
from mee_utils.companion.profiles import load_profile
from mee_utils.companion.training.model_manifest import by_form, measure


def test_exact_match_is_counted_by_form():
    task = load_task("question_answering", limit=60)
    wrong = [text if form == "counted" else "no" for text, form in zip(task.targets, task.forms, strict=True)]
    shares = by_form(task, wrong)
    assert set(shares) == set(task.forms) and list(shares) == sorted(shares)
    assert shares.pop("counted") == 100 and set(shares.values()) == {0}
    last = max(i for i, form in enumerate(task.forms) if form == "counted")
    wrong[last] = "no"
    count = task.forms.count("counted")
    assert by_form(task, wrong)["counted"] == round(100 * (count - 1) / count, 2)


def test_the_first_safe_layer_is_where_confident_tokens_keep_full_depths_prediction():
    model = load_profile_model(load_profile("small"), "vanilla", "float32")
    tasks = [load_task(name, limit=12) for name in ("summarization", "translation")]
    scores, layer = measure(model, tasks, 24)
    expected = 4  # a third of the depth
    for task in tasks:
        seen = trace(model, task.inputs, max_new_tokens=24, batch_size=64)
        for depth in range(1, 12):
            kept = (seen.top1_id == seen.final_id[:, None])[seen.margin[:, depth - 1] > 0.9, depth - 1]
            if len(kept) and kept.mean() < 0.95:
                expected = max(expected, depth + 1)
        assert scores[task.name]["examples"] == 12 and scores[task.name]["sha256"] == task.digest
    assert layer == expected > 4


@pytest.mark.parametrize("name", ["small", "real"])
def test_shipped_models_begin_to_exit_where_it_was_measured_to_be_safe(name):
    profile = load_profile(name)
    shipped = [model for model in profile.training.backbones if is_trained(profile, model)]
    assert shipped
    for model in shipped:
        layer = load_profile_model(profile, model).min_exit_layer
        assert layer == manifest(profile, model)["min_exit_layer"] and 4 <= layer < 12
