# make reproduce    every notebook, figure and table of a profile        PROFILE=small|real|paper  DATA=folder  FORCE=1
# make test         unit tests, exactness tests, stored notebooks re-run and compared
# make test-all     these, and what takes a browser, a package or a rehearsal, and drills of the tests themselves
# make results      RESULTS.md, the numbers of README.md, DATA.md and the model cards, from the stored tables
# make explorer     one page on which thresholds move and outputs follow
# make bench        the decoder against its peers; writes figures/bench; keep the machine quiet    PROFILE, DATA, PART="one decision", DEVICE=cpu
# make measure      decodes with every rule again; hours (05, 06, 08, 09 are drawn from what is stored)  PROFILE, DATA, FORCE=1
# make data         the corpora of a profile, from their publishers      PROFILE=real  DATA=folder (by default: data)
# make train        the models and classifiers of a profile              PROFILE=small|real|paper  DATA=folder  MODEL=name
# make rehearse     a profile of the papers on random weights, from a stand-in for the hub: memory, time, estimates    PROFILE=paper_published  SHAPE=true|small
# make pin          writes the current commit of every hub id into a profile       PROFILE=paper
# make retrain      further seeds, decoders trained shallow, ablations     PROFILE=small|real  DATA=folder
# make lab          JupyterLab, on a list of the notebooks
# make site         all notebooks and results as web pages, in build/site; nothing is run, no network is used
# make status       which models and results are there, and which are stale   PROFILE, DATA
# make clean        deletes what is in build, without unfinished trainings      TRAINING=1: with them
# make lock         writes the installed versions to requirements.lock
# make origin       where a stored table or figure comes from: cell, parameters, inputs, machine      FILE=figures/...
# Set-up (virtual environment, versions of requirements.lock) is part of each of them and is done once.

PROFILE ?= small
DATA ?=
MODEL ?=
PART ?=
FILE ?=
SHAPE ?= true
FORCE ?=
CORES ?=
SITE ?= build/site

export HF_HUB_DISABLE_PROGRESS_BARS = 1
export TOKENIZERS_PARALLELISM = false
export PYTHONUNBUFFERED = 1
# glibc keeps the memory of large arrays for the next ones: a tenth of the time of traces and replays
export MALLOC_MMAP_THRESHOLD_ = 1073741824
export MALLOC_TRIM_THRESHOLD_ = 4294967296

# a module is compiled when it is first imported; without its bytecode each process would compile it again
unexport PYTHONDONTWRITEBYTECODE

ifeq ($(CONDA_DEFAULT_ENV),mee)
  PYTHON := python
  INSTALLED := requirements.lock
else
  PYTHON := .venv/bin/python
  INSTALLED := .venv/.installed
endif

COMPANION = $(PYTHON) -m mee_utils
# what is never imported is never compiled: to compile every package here would take as long as to install it
PIP = $(PYTHON) -m pip install --no-compile --quiet --disable-pip-version-check --constraint requirements.lock --editable
# uv is quicker, where there is one
UV = uv pip install --quiet --python .venv --constraint requirements.lock --editable
OPTIONS = --profile $(PROFILE) $(if $(DATA),--data "$(DATA)")

.PHONY: reproduce measure test test-all rehearse explorer bench data train pin retrain status origin results site lab lock setup clean

reproduce: $(INSTALLED)
	@$(COMPANION) reproduce $(OPTIONS) $(if $(CORES),--cores $(CORES)) $(if $(FORCE),--force)

measure: $(INSTALLED)
	@$(COMPANION) measure $(OPTIONS) $(if $(CORES),--cores $(CORES)) $(if $(FORCE),--force)

PYTEST = OMP_NUM_THREADS=1 $(PYTHON) -m pytest tests mee_utils --doctest-modules -n logical --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

test: $(INSTALLED)
	@$(PYTEST) -m "not thorough"

test-all: $(INSTALLED)
	@$(PYTEST)

rehearse: $(INSTALLED)
	@PYTHONPATH=. $(PYTHON) tests/rehearsal.py --profile $(PROFILE:small=paper_published) --shape $(SHAPE)

explorer: $(INSTALLED)
	@$(COMPANION) explorer

bench: $(INSTALLED)
	@$(PYTHON) -c 'import ctranslate2, economize' 2>/dev/null || $(PIP) '.[bench]'
	@PYTHONPATH=tests $(PYTHON) -m benchmarks $(OPTIONS) $(if $(PART),--part "$(PART)") $(if $(DEVICE),--device $(DEVICE))

data: $(INSTALLED)
	@$(COMPANION) data $(OPTIONS)

train: $(INSTALLED)
	@$(COMPANION) train $(OPTIONS) $(if $(MODEL),--model $(MODEL))

pin: $(INSTALLED)
	@$(COMPANION) pin --profile $(PROFILE)

retrain: $(INSTALLED)
	@$(COMPANION) retrain $(OPTIONS)

status: $(INSTALLED)
	@$(COMPANION) status $(OPTIONS)

origin: $(INSTALLED)
	@$(COMPANION) origin "$(FILE)"

results: $(INSTALLED)
	@$(COMPANION) results

site: $(INSTALLED)
	@$(PYTHON) -m sphinx --quiet --fresh-env -c notebooks/site -d "$(SITE)-cache" . "$(SITE)"
	@echo "$(SITE)/index.html"

lab: $(INSTALLED)
	@$(PYTHON) -m jupyterlab notebooks/index.ipynb

lock: $(INSTALLED)
	@$(PYTHON) .ci/lock.py

setup: $(INSTALLED)

.venv/.installed: pyproject.toml requirements.lock
	@python3 -c 'import sys; sys.exit("Python 3.11 or newer is needed; this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@echo "setting up .venv (once; some minutes and 2 GB)"
	@test -x .venv/bin/python || python3 -m venv .venv
	@$(UV) '.[all]' 2> /dev/null || $(PIP) '.[all]'
	@touch $@

# what a training has reached so far took hours: it goes only if asked for
clean:
	@test ! -d build || find build -mindepth 1 -maxdepth 1 $(if $(TRAINING),,! -name training ! -name retrained) -exec rm -rf {} +
	@test ! -d build/training -a ! -d build/retrained || echo "kept: unfinished trainings, in build/training and build/retrained; make clean TRAINING=1 deletes them"
