# Short names for what one does in a checkout. Each calls the tool, which can do more: .venv/bin/toolkit --help
.DEFAULT_GOAL := help
.PHONY: help images-cuda test-all test-unit fuzz test-jobs test-cluster test-programs test-slurm images image-pytorch image-tensorflow setup demo test lint docs docs-notebook docs-update house bench-explain bench-cli bench-build bench-allreduce bench-launch bench-failures bench-size test-faults test-fresh workshop-rehearsal test-gpu gpu-pack clean

TOOLKIT := .venv/bin/toolkit
PYTEST  := .venv/bin/python -m pytest
# In CI nothing may be skipped: tests/strict.py turns a skip into a failure.
STRICT  := $(if $(CI),-p tests.strict)
# Much of a test is to wait: for Slurm, for an image, for a node that is gone.
WORKERS := 6
# How long each test took stays in build/.
PARALLEL = --junitxml build/$@.xml -n $(WORKERS) --dist
# Of real programs: a file's tests share a worker, and so its cluster and images; what takes longest begins (tests/conftest.py).
BY_FILE := loadfile --no-loadscope-reorder
# What of tests/cluster is run (nothing: all of it), and the images of the tests' own store.
CHOSEN  := not long
BUILT   := pytorch_cpu tests/cluster/notebook_cpu.toml
STORE   := $(or $(TOOLKIT_TEST_IMAGES),$(HOME)/.cache/toolkit-tests/images)
SUITE   := trixie
# Beside them, of the fault tests: runs at the same time, and a run that is killed in between.
FAULTS  := tests/faults/test_submission_faults.py
TESTS   := tests/cluster $(FAULTS)::test_together $(FAULTS)::test_sbatch_outlives_the_toolkit
FRESH   := /var/tmp/fresh-debian
SHELLS   = $(shell find .ci/run tests toolkit tools -name '*.sh' -o -path .ci/run)

help: ## show this
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1|/p; s/^image-%:.*## /image-<name>|/p' Makefile | while IFS='|' read -r name text; do printf 'make %-18s %s\n' "$$name" "$$text"; done

demo: setup ## everything once: image, cluster, a training on 2 nodes x 2 ranks
	@$(TOOLKIT) demo

setup: .venv/.ready ## install what this machine lacks: Apptainer, Slurm
	@$(TOOLKIT) setup

image-pytorch: image-pytorch_22.03 ## the image of many guides: NGC PyTorch 22.03 with Horovod

image-tensorflow: image-tensorflow_25.02 ## NGC TensorFlow, the last one

image-%: setup ## build the image of recipes/<name>.toml
	@$(TOOLKIT) image build $*

images: setup ## build all images for CPUs: what needs no login and no GPU
	@for name in pytorch_cpu tensorflow_cpu ray_cpu trainers_cpu deepspeed_cpu; do $(TOOLKIT) image build $$name || exit; done

CUDA := pytorch_cuda pytorch_cuda12 tensorflow_cuda trainers_cuda ray_cuda deepspeed_cuda
images-cuda: setup ## build the images for GPUs that need no login and no GPU to build: CUDA=NAMES for some of them (40 GB of disk)
	@for name in $(CUDA); do $(TOOLKIT) image build $$name || exit; done

test: .venv/.ready-dev ## set up, lint, and run the tests: what a change needs (12 minutes on two cores)
	@$(TOOLKIT) setup --with tests --with accounting
	@$(MAKE) --no-print-directory lint test-unit test-cluster

test-all: ## every test, also the costly variations of others (an hour)
	@$(MAKE) --no-print-directory test CHOSEN= TESTS='tests/cluster tests/faults' BUILT='$(BUILT) tensorflow_cpu ray_cpu'

test-unit: WORKERS := auto
test-unit: .venv/.ready-dev ## the tests that need no other program (one minute)
	$(PYTEST) $(STRICT) $(PARALLEL) worksteal tests/unit

test-cluster: .venv/.ready-dev ## set up, and run the tests that run real programs; TESTS=FILES for some of them
	@$(TOOLKIT) setup --with tests --with accounting
	@for name in $(BUILT); do TOOLKIT_IMAGES=$(STORE) $(TOOLKIT) image build $$name || exit; done
	$(PYTEST) $(STRICT) -v $(if $(CHOSEN),-m '$(CHOSEN)') $(PARALLEL) $(BY_FILE) $(TESTS)

test-programs: .venv/.ready-dev ## run trainings of public repositories, whose checkouts (owner+name) are in PROGRAMS=DIR
	@test -d '$(PROGRAMS)' || { echo 'make test-programs PROGRAMS=DIR: the directory with the checkouts'; exit 64; }
	@$(TOOLKIT) setup --with tests
	PROGRAMS='$(abspath $(PROGRAMS))' $(PYTEST) -v $(PARALLEL) worksteal tests/programs

# The machine is kept, with its images and what is installed; NEW=1 makes it again.
test-slurm: ## the cluster tests on Debian SUITE=bookworm, trixie or sid, and so with its Slurm (root; 20 minutes)
	CI=true tests/fresh/fresh-debian.sh --dir $(FRESH)/$(SUITE) --suite $(SUITE) $(if $(NEW),,--again) -- make test-cluster TESTS='$(TESTS)'

test-jobs: setup ## every exercise and every command of published guides, on a local cluster of two nodes; renews docs/guides.md
	@for image in pytorch_cpu tensorflow_cpu ray_cpu trainers_cpu deepspeed_cpu; do $(TOOLKIT) image build $$image || exit; done
	@.venv/bin/python -m benchmarks.coverage

fuzz: .venv/.ready-dev ## break the inputs of every reader of others' files and answers for SECONDS (default: 300)
	.venv/bin/python -m tests.fuzz $(or $(SECONDS),300)

lint: .venv/.ready-dev ## ruff, mypy, layers, shellcheck
	.venv/bin/ruff check -q .
	.venv/bin/ruff format -q --check .
	.venv/bin/mypy --no-error-summary
	.venv/bin/lint-imports --no-logo
	@command -v shellcheck >/dev/null || { echo 'shellcheck is missing: $(TOOLKIT) setup --with tests'; exit 72; }
	shellcheck -x $(SHELLS)

bench-cli: setup ## how long commands take, beside their peers
	@.venv/bin/python -m benchmarks.cli

bench-build: setup ## how long a changed image takes to build again, beside Apptainer and BuildKit
	@$(TOOLKIT) image build pytorch_cpu
	@.venv/bin/python -m benchmarks.build

bench-allreduce: export TOOLKIT_CLUSTER := bench
bench-allreduce: setup ## how fast ranks add up on two nodes, over Gloo, Horovod and MPI; every sum checked
	@$(TOOLKIT) image build pytorch_cpu
	@$(TOOLKIT) cluster up --nodes 2
	@$(TOOLKIT) bench allreduce --nodes 2 --image pytorch_cpu --backend gloo --backend horovod --backend mpi; code=$$?; $(TOOLKIT) cluster down; exit $$code

bench-launch: setup ## from sbatch to the first all-reduce, beside scripts by hand
	@$(TOOLKIT) image build pytorch_cpu
	@.venv/bin/python -m benchmarks.launch

bench-explain: setup ## how many failures are explained rightly
	@.venv/bin/python -m benchmarks.explain

bench-failures: setup ## how often the first failing rank and its cause are named: 300 failing runs, drawn at random
	@for name in pytorch_cpu tensorflow_cpu ray_cpu; do $(TOOLKIT) image build $$name || exit; done
	@.venv/bin/python -m benchmarks.failures

bench-size: setup ## what a local cluster of 1,000 nodes and a job on it cost (4 GB of memory)
	@.venv/bin/python -m benchmarks.size

test-faults: .venv/.ready-dev ## inject faults between sbatch and the outcome, and into builds; write docs/faults.md (about 20 minutes)
	@$(TOOLKIT) setup --with tests --with accounting
	WRITE_FAULTS=1 $(PYTEST) -v tests/faults

gpu-pack: setup ## pack what `make test-gpu` needs on a machine without a network, for PYTHON_VERSION=3.12
	@.venv/bin/python -m tests.gpu.pack build/gpu-pack $(if $(PYTHON_VERSION),--python $(PYTHON_VERSION))

test-gpu: ## what only a GPU shows, by PYTHON=python3 with torch; a report in build/; needs no network, takes Slurm of a gpu-pack
	@tests/gpu/run.sh $(TESTS_GPU)

docs: .venv/.ready-docs ## build the site of docs/ in English and Korean, in build/docs/html; warnings are errors
	@.venv/bin/python -m tools.docs build

docs-notebook: setup ## take the picture of a notebook in docs/images, in a real browser
	@pictures=$$(mktemp -d); trap 'rm -r $$pictures' EXIT; TOOLKIT_KEEP_SCREENSHOTS=$$pictures $(PYTEST) -q tests/cluster/test_notebook_browser.py -k plot && \
	cp $$pictures/notebook.png docs/images/

docs-update: .venv/.ready-docs ## bring the catalogs of the translation (docs/locale) up to date with the pages
	@.venv/bin/python -m tools.docs update

workshop-rehearsal: setup ## the workshop of workshops/neuron-2022 with 40 users, or PEOPLE=NUMBER (root); EXERCISES=NAMES for some of it
	@for name in pytorch_cpu tensorflow_cpu ray_cpu; do $(TOOLKIT) image build $$name || exit; done
	@$(TOOLKIT) workshop rehearse workshops/neuron-2022 --people $(or $(PEOPLE),40) $(addprefix --only ,$(EXERCISES))

house: .venv/.ready-dev ## hold each room to its budget in benchmarks/house.tsv; the longest functions, imports that run upward
	@.venv/bin/python -m benchmarks.house

test-fresh: ## make demo and make test on a Debian with nothing installed (root; about 30 minutes)
	tests/fresh/fresh-debian.sh -- make demo test

clean: ## remove .venv, caches and packages; images and runs are kept
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find toolkit tests -name __pycache__ -prune -exec rm -rf {} +

# The environment, made again when what it is made of changes.
.venv/.ready: pyproject.toml tools/venv.sh
	@tools/venv.sh
	@touch $@

.venv/.ready-dev: pyproject.toml tools/venv.sh
	@tools/venv.sh dev
	@touch $@ .venv/.ready .venv/.ready-docs

.venv/.ready-docs: pyproject.toml tools/venv.sh
	@tools/venv.sh docs
	@touch $@ .venv/.ready
