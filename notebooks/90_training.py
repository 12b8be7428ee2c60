# %% [markdown]
# # 90 · Appendix: how the models learned
#
# [‹ 10 confidence](10_confidence.ipynb) · [all notebooks](../README.md#the-notebooks)
#
# **Question.** How were the mini models made, and what did each layer learn? Nothing here is about exits; it shows what
# the other chapters rest on.
#
# *Pre-trained only* has seen span corruption and no task. *Base* began the same way and then learned the tasks. Most of
# this is done with four layers, which takes a third of the time. Then each layer is replaced by three copies whose
# residual updates are scaled by a third, and all twelve are trained together. All other models start from base and see
# the same number of examples at the same learning rate; objectives that supervise intermediate layers sample one
# layer per training step.
#
# Two more things are meant to make models this small learn quickly. Three of the four heads in the encoder, and two in
# the decoder, are initialised to attend to neighbouring tokens. And the weight matrices are trained with the optimizer
# Muon. The table has the steps, the minutes and the seed of each model's training.

# %% tags=["parameters"]
profile = "small"  # which models and corpora: small, real
data = ""  # folder of the corpora, where the profile reads local ones
limit = 200  # examples of each synthetic task on which accuracy is measured

# %% tags=["hide-input"]
import pandas as pd
from scipy.stats import binomtest, fisher_exact

from mee_utils.analysis import model_quality as quality
from mee_utils.companion import Experiment
from mee_utils.companion.chapters import training as chapter
from mee_utils.companion.prose import conclude
from mee_utils.companion.result_tables import read_retrained

# %% tags=["hide-input"]
experiment = Experiment.of_notebook("90_training", globals())
are_synthetic = {corpus.source for corpus in experiment.profile.corpora.values()} == {"synthetic"}
conclude(chapter.LESSONS if are_synthetic else "")
names = experiment.model_names
manifests = experiment.manifests(names)
trainings = pd.DataFrame(list(manifests.values()), index=pd.Index(manifests, name="model"))
trainings.reindex(columns=["steps", "minutes", "seed"])

# %% [markdown]
# ## Learning curves
#
# Each line is the cross-entropy of one layer (six of them are drawn) on target tokens of the tasks, on examples used
# neither for training nor for evaluation, from dark (first layer) to light (last layer), on a logarithmic axis. Curves
# begin where a model has all its layers. **Expectation:** under CALM the layers converge, in order of depth; under
# vanilla only the last ones improve.

# %% tags=["hide-input"]
points = [
    {"model": name, **point} for name in names for point in manifests[name].get("layer_cross_entropy", [])
]
curves = pd.DataFrame(points, columns=["model", "step", "cross_entropy"]).explode("cross_entropy")
curves.insert(2, "layer", curves.groupby(["model", "step"]).cumcount() + 1)
curves = curves[curves.groupby(["model", "step"]).layer.transform("max") == experiment.layers]
curves = curves.astype({"cross_entropy": float})

# %%
if len(curves):
    figure = chapter.curves_figure(curves, experiment.note())
    experiment.save_figure(figure, "learning_curves", curves)
    conclude(chapter.curves_conclusion(curves))

# %% tags=["hide-input"]
accuracy = pd.DataFrame()
if are_synthetic:
    tasks = experiment.tasks(limit)
    longest = experiment.profile.training.max_target
    accuracy = quality.difficulty_accuracy(tasks, experiment.models(names), longest)
    accuracy = experiment.save_table(accuracy, "accuracy_by_difficulty")
    conclude(chapter.DIFFICULTY)

# %%
if len(accuracy):
    conclude(chapter.difficulty_conclusion(accuracy))

# %% tags=["hide-input"]
forms = quality.form_table(manifests)
if len(forms):
    spoken = forms.form.str.endswith(", bare").map({True: chapter.SILENT, False: chapter.ALOUD})
    forms = forms.assign(answer=spoken, kind=forms.form.str.removesuffix(", bare"))
    conclude(chapter.FORMS)

# %%
if len(forms):
    figure = chapter.forms_figure(forms, experiment.note())
    experiment.save_figure(figure, "exact_match_by_form", forms)
    conclude(chapter.forms_conclusion(forms))

# %% tags=["hide-input"]
ablations = read_retrained(profile, "ablations")
if len(ablations):
    spoken = ablations.form.str.endswith(", bare").map({True: chapter.SILENT, False: chapter.ALOUD})
    right = (ablations.exact_match / 100 * ablations.questions).round().astype(int)
    runs = ablations.assign(answer=spoken, right=right).groupby(["answer", "run"], sort=False, as_index=False)
    runs = runs[["right", "questions"]].sum()
    tests = [binomtest(row.right, row.questions) for row in runs.itertuples()]
    runs[["low", "high"]] = [test.proportion_ci(method="wilson") for test in tests]
    runs["share"] = runs.right / runs.questions
    conclude(chapter.ABLATIONS)

# %%
if len(ablations):
    figure = chapter.ablations_figure(runs, experiment.note(intervals="whiskers: 95 % intervals (Wilson)"))
    experiment.save_figure(figure, "ablations", runs)

# %% tags=["hide-input"]
if len(ablations):
    aloud = runs[runs.answer == chapter.ALOUD].set_index("run")
    counts = {run: [row.right, row.questions - row.right] for run, row in aloud.iterrows()}
    others = aloud.index.drop(["recipe", chapter.UNSPOKEN])  # that one saw no sentences: right panel
    p = pd.Series({run: fisher_exact([counts["recipe"], counts[run]]).pvalue for run in others})
    conclude(chapter.ablations_conclusion(aloud.share, p), chapter.unspoken_conclusion(runs))

# %% tags=["hide-input"]
experiment.finish()
