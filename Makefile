# make demo   set up, then the whole workflow on the tiny model and the conversations that come with it
# make test   set up, then every test
# VENV=<dir> chooses where the environment lives, PYTHON=<program> what it is made with (3.11 or 3.12).
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test unit lint lock

VENV ?= .venv
BIN := $(abspath $(VENV))/bin
RUN := PATH="$(BIN):$$PATH" VIRTUAL_ENV="$(abspath $(VENV))" PYTHONNOUSERSITE=1

help:
	@sed -n '1,3s/^# //p' Makefile

setup:
	@VENV="$(VENV)" PYTHON="$(PYTHON)" bash envs/setup.sh

demo: setup
	@$(RUN) snakemake --cores all all
	@$(RUN) python -m hidden_states.packaging.closing results

test: setup lint
	@$(RUN) python -m pytest

unit: setup
	@$(RUN) python -m pytest tests/unit

lint: setup
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) snakefmt --check Snakefile rules
	@$(RUN) snakemake --lint

lock:
	@bash envs/lock.sh
