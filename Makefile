# make demo         set up, then the whole workflow on the tiny model and the conversations that come with it
# make test         set up, then every test but the long ones
# make test-faults  set up, then the long ones: faults injected into whole runs on the real server
# make test-v1      of the long ones, that of the format speculators-v1 with speculators 0.4, in an environment of its own
# make families     measures what is captured of each model family and writes docs/families.md; ONLY="llama qwen3": just those
# VENV=<dir> chooses where the environment lives, PYTHON=<program> what it is made with (3.11 or 3.12).
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup setup-v1 demo test test-faults test-v1 families unit lint lock

VENV ?= .venv
BIN := $(abspath $(VENV))/bin
RUN := PATH="$(BIN):$$PATH" VIRTUAL_ENV="$(abspath $(VENV))" PYTHONNOUSERSITE=1

help:
	@sed -n '1,6s/^# //p' Makefile

setup:
	@VENV="$(VENV)" PYTHON="$(PYTHON)" bash envs/setup.sh

demo: setup
	@$(RUN) snakemake --cores all all
	@$(RUN) python -m hidden_states.packaging.closing results

test: setup lint
	@$(RUN) python -m pytest -m "not faults"

test-faults: setup setup-v1
	@$(RUN) python -m pytest -m faults

setup-v1: setup
	@VENV="$(VENV)" bash envs/setup-v1.sh

test-v1: setup setup-v1
	@$(RUN) python -m pytest tests/faults/test_speculators_v1_trains.py

families: setup
	@$(RUN) PYTHONPATH=benchmarks:tests python -m families $(ONLY)

unit: setup
	@$(RUN) python -m pytest tests/unit

lint: setup
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) snakefmt --check Snakefile rules
	@$(RUN) snakemake --lint

lock:
	@bash envs/lock.sh
