PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help verified lock audit demo test docs hostile check size format bench build notebooks tables pictures reproduce \
	baselines clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 20

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/developed: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,data,hf,privacy,ray,flower]'
	touch $@

verified:  ## install what the demo needs, every file checked against the hashes in requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch .venv/installed

lock: .venv/developed  ## write requirements.lock: the demo's packages at the versions of constraints.txt, with hashes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	echo 'setuptools>=77' | $(BIN)/uv pip compile pyproject.toml - -c constraints.txt --generate-hashes --universal \
		--no-annotate --custom-compile-command 'make lock' --quiet --output-file requirements.lock

audit: .venv/developed  ## look for known vulnerabilities of the packages in requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	$(BIN)/uv tool run pip-audit --strict --disable-pip --require-hashes --requirement requirements.lock

demo: .venv/installed  ## compare five methods on real images and a slow fleet: a table, a figure and a report
	$(BIN)/tardygrad demo

test: .venv/developed  ## run all tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

docs: .venv/developed  ## build the documentation site: build/docs/index.html
	$(BIN)/python -m sphinx -b html -q -n -W --keep-going docs build/docs

hostile: .venv/developed  ## attack records, runs, command lines, arguments and workers; print a table of what came of it
	$(BIN)/python -m tests.hostile --page docs/benchmarks/hostile.md

check: .venv/developed  ## check style, types and layers
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py tests/test_public.py

size: .venv/developed  ## print the lines of every package beside its budget
	$(BIN)/python tools/size.py --cases

format: .venv/developed  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/developed  ## measure speed: command line, simulator, kernels, Ray, Flower
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/clock.py
	$(BIN)/python benchmarks/checkpoints.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/data_loading.py
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/ray_throughput.py
	$(BIN)/python benchmarks/ray_stragglers.py
	$(BIN)/python benchmarks/ray_states.py
	$(BIN)/python benchmarks/flower.py

build: .venv/developed  ## build the sdist and the wheel into dist/ and check them
	rm -rf dist build/lib build/bdist.*
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

notebooks: .venv/developed  ## run the notebooks and store what they show
	$(BIN)/python tools/notebooks.py

tables: .venv/developed  ## write tables of docs/ and the pages of methods, from signatures and docstrings
	$(BIN)/python tools/tables.py

pictures: .venv/developed  ## draw the pictures of docs/glossary.md
	$(BIN)/python -m tools.pictures

reproduce: .venv/installed  ## reproduce the paper's clock, its Figure 1 and its claims: docs/reproduction.md, in 15 minutes
	$(BIN)/python -m experiments.clock --page docs/reproduction.md
	$(BIN)/python -m experiments.figure1 --page docs/reproduction.md
	$(BIN)/python -m experiments.claims --fast --page docs/reproduction.md

baselines: .venv/installed  ## compare Clip² with its relatives, all tuned equally: docs/baselines.md, in some four hours on two cores, less what is stored
	$(BIN)/python -m experiments.baselines --page docs/baselines.md

clean:  ## remove what the targets created
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
