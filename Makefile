# Everything here sets itself up: a fresh clone needs make and Python 3.11 or newer.
#
#   make run CUDA_EXTRA=none     leave the driver alone (auto, none, cuda12, cuda13)
#   make test UI=no              without the tests that drive a browser
#   make test READERS=no         without the tests that open exports with other tools
#   make test WHEEL=no           without the test of a wheel in an environment of its own
#   make lite PYODIDE=folder     host Pyodide from this folder instead of a CDN
#   make test-gpu WORKERS=2      how many tests share the GPU; those that measure run alone, behind them
#   make test-gpu ARGS='-m gpu_alone'   with options of pytest's: here, those that run alone
#   make test-gpu OFFLINE=1      on a machine without a network, after `make gpu-wheels` elsewhere
#   make fuzz EXAMPLES=20000     how many examples each property is tried on

SHELL = /bin/sh

# Benchmarks and scripts mostly run elsewhere: what they call is checked to be there.
LENIENT = $(addprefix --disable-error-code=,arg-type assignment override union-attr var-annotated)

CUDA_EXTRA ?= auto
UI ?= yes
READERS ?= yes
WHEEL ?= yes
PYTHONS ?= 3.11 3.12 3.13 3.14
OFFLINE ?=
WORKERS ?=
ARGS ?=
PYODIDE ?=
EXAMPLES ?= 2000

PY = .venv/bin/python
WHEELS = python=$$(scripts/find_python.sh) && "$$python" scripts/wheels.py
SETUP = python=$$(scripts/find_python.sh) && "$$python" scripts/setup_venv.py --cuda $(CUDA_EXTRA)

# Tests of what calls packages that pyproject.toml names.
USES_PACKAGES = $(addprefix tests/unit/,formats cli/test_cli.py widgets/test_dashboard.py analyses/test_sql.py search/test_scale_out.py)

# Python on the GPU machine: the checkout's environment or, offline, the machine's own.
GPU_PY = $(if $(OFFLINE),scripts/gpu_offline.sh python3,$(PY))
GPU_SETUP = $(if $(OFFLINE),:,$(SETUP) gpu)

.DEFAULT_GOAL := help
.PHONY: help run check test coverage mutants style types types-of-scripts other-programs test-wheel wheels test-wheels test-lowest test-perfetto test-pythons lock news lab bench test-gpu bench-gpu docs lite fuzz gpu-wheels clean distclean

help:
	@echo 'make run         set up, run examples/quickstart.toml, write out/quickstart'
	@echo 'make check       style, types, arrows, unit tests of the rooms that changed'
	@echo 'make test        set up, check style, types and arrows, run every test that needs no GPU'
	@echo 'make coverage    the same without a browser, and how many lines it reaches: twice the time'
	@echo 'make mutants     how many of 100 planted defects the tests notice: hours'
	@echo 'make test-wheel  build wheels of gpuscope and the lessons and use them in environments of their own'
	@echo 'make wheels      of both: sdist, pure wheel, and of gpuscope a wheel for each Python of $(PYTHONS) that is installed, in dist/'
	@echo 'make test-perfetto   the trace processor that Perfetto offers for download reads our traces'
	@echo 'make test-wheels use each of these in an environment of its own, and time it'
	@echo 'make test-pythons   the tests without a browser on each Python of $(PYTHONS) that is installed'
	@echo 'make test-lowest the quickstart, and the tests of what uses other packages, with the oldest of these that pyproject.toml allows'
	@echo 'make lab         open JupyterLab on notebooks/'
	@echo 'make bench       benchmarks that need no GPU'
	@echo 'make test-gpu    tests on this GPU (OFFLINE=1: with the wheels in .wheels/)'
	@echo 'make bench-gpu   benchmarks on this GPU, to benchmarks/results/ (OFFLINE=1 too)'
	@echo 'make docs        the documentation, its notebooks executed, in site/html/'
	@echo 'make lite        a JupyterLite site with the lessons, to run in a browser, in site/lite/'
	@echo 'make fuzz        20,000 damaged traces a format, C with sanitizers, property tests on EXAMPLES=2000'
	@echo 'make lock        write scripts/locked.txt, the versions that CI installs'
	@echo 'make news        put the fragments in news/ into CHANGELOG.md'
	@echo 'make gpu-wheels  fill .wheels/ for a GPU machine that has no network'
	@echo 'make clean       remove outputs and caches; distclean: .venv and .wheels too'

run:
	@$(SETUP) run
	.venv/bin/gpuscope quickstart --force

check:
	@$(SETUP) test
	@$(PY) scripts/check.py

# Many tests start processes: with bytecode each takes a second less, even where none is to be written.
test:
	@$(SETUP) test
	@$(PY) -m compileall -q gpuscope lessons/gpuscope_lessons
	@$(MAKE) --no-print-directory -j style types types-of-scripts other-programs
	$(PY) -m pytest -m "not gpu and not ui" -n auto --dist worksteal \
		$$(test '$(READERS)' != no || echo --ignore=tests/interop --ignore=lessons/tests/interop)
	@test '$(UI)' = no || $(PY) -m pytest -m ui -n 2 --dist loadfile
	@test '$(WHEEL)' = no || $(MAKE) --no-print-directory test-wheel

style:
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports

types:
	.venv/bin/mypy --python-version $$($(PY) -c 'import sys; print("%d.%d" % sys.version_info[:2])')

types-of-scripts:
	.venv/bin/mypy --config-file= --ignore-missing-imports --check-untyped-defs --cache-dir .mypy_cache/scripts \
		$(LENIENT) benchmarks/*.py scripts/*.py

other-programs:
	@test '$(UI)' = no || scripts/chromium.sh
	@test '$(READERS)' = no || scripts/readers.sh

coverage:
	@$(SETUP) test
	@test '$(READERS)' = no || scripts/readers.sh
	$(PY) -m pytest -m "not gpu and not ui" -n auto --dist worksteal --cov --cov-report= \
		$$(test '$(READERS)' != no || echo --ignore=tests/interop --ignore=lessons/tests/interop)

mutants:
	@$(SETUP) test
	@test -x .cache/mutants/bin/python || $(PY) -m venv .cache/mutants
	@.cache/mutants/bin/pip install -q 'cosmic-ray>=8.4'
	.cache/mutants/bin/python scripts/mutants.py $(ARGS)

test-wheel:
	@$(WHEELS) build .cache/wheel >/dev/null
	@export PIP_CONSTRAINT='$(CURDIR)/scripts/locked.txt'; $(WHEELS) test --extra cli .cache/wheel/*.whl

wheels:
	@$(WHEELS) build dist $(PYTHONS)

test-wheels: wheels
	@$(WHEELS) test dist/*

test-perfetto:
	@$(SETUP) test
	GPUSCOPE_TRACE_PROCESSOR=download $(PY) -m pytest tests/interop/test_perfetto_typed.py -k current

test-pythons:
	@for version in $(PYTHONS); do \
		folder=.cache/python$$version; \
		command -v python$$version >/dev/null || { echo "python$$version is not installed"; continue; }; \
		python$$version scripts/setup_venv.py --cuda none --folder $$folder test && \
		$$folder/bin/python -m pytest -m "not gpu and not ui" --ignore=tests/interop --ignore=lessons/tests/interop -n auto --dist loadfile || exit; \
	done

test-lowest:
	@rm -rf .cache/lowest
	@python3.11 -m venv .cache/lowest
	@.cache/lowest/bin/python -m pip install -q uv==0.13.9
	.cache/lowest/bin/uv pip install --python .cache/lowest/bin/python --resolution lowest-direct --editable '.[test]' --editable lessons
	.cache/lowest/bin/gpuscope quickstart --force --out .cache/lowest/quickstart
	.cache/lowest/bin/python -m pytest -n auto --dist loadfile $(USES_PACKAGES)

lock:
	@rm -rf .cache/lock
	@$(SETUP) --folder .cache/lock lock
	@{ echo '# What CI installs, written by `make lock`.'; \
		.cache/lock/bin/python -m pip freeze --exclude-editable; } >scripts/locked.txt
	@rm -rf .cache/lock

news:
	@$(PY) scripts/news.py

lab:
	@$(SETUP) run
	.venv/bin/jupyter lab --notebook-dir=. --LabApp.default_url=/lab/tree/notebooks $$(test "$$(id -u)" != 0 || echo --allow-root)

bench:
	@$(SETUP) test
	$(PY) benchmarks/cpu.py
	$(PY) benchmarks/what_if.py
	$(PY) benchmarks/tune_pairs.py --jobs 2
	$(PY) benchmarks/timeline.py
	$(PY) benchmarks/scale.py
	$(PY) benchmarks/browser.py
	$(PY) benchmarks/diff_noise.py --out benchmarks/results/diff_noise.json
	$(PY) benchmarks/exporting.py --out benchmarks/results/exporting.json
	$(PY) benchmarks/grading.py --out benchmarks/results/grading.json
	@scripts/readers.sh
	$(PY) benchmarks/importing.py --hta .cache/readers/hta/bin/python --out benchmarks/results/importing.json

test-gpu:
	@$(GPU_SETUP)
	$(GPU_PY) scripts/gpu_tests.py $(addprefix --workers ,$(WORKERS)) $(ARGS)

bench-gpu:
	@$(GPU_SETUP)
	$(GPU_PY) benchmarks/all_gpu.py

docs:
	@$(SETUP) docs
	$(PY) scripts/docs_pages.py
	$(PY) -m sphinx -W --keep-going -b html docs site/html

lite:
	@python=$$(scripts/find_python.sh) && "$$python" scripts/lite.py $(addprefix --pyodide ,$(PYODIDE))

fuzz:
	@$(SETUP) test
	$(PY) scripts/fuzz.py $(EXAMPLES)

gpu-wheels:
	@scripts/gpu_wheels.sh

clean:
	rm -rf out site docs/lessons docs/reference/api build dist test-results .pytest_cache .mypy_cache .ruff_cache \
		.import_linter_cache .hypothesis .cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .wheels .cache
