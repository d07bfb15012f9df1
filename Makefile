# The two commands of the README are `make demo` and `make test`; both need Python >= 3.10, g++ and make.
PYTHON ?= python3
RANKS ?= 2
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# Warnings are errors in CI and in the sanitizer builds; a newer compiler must not break `make demo`.
WERROR ?= $(if $(CI),ON,OFF)
MAX_SKIPS ?= -1
PYTEST_ARGS ?=
# How many tests of the C++ core are built at once.
JOBS ?= 2

NATIVE := $(shell find native -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name CMakeLists.txt)
CXX_SOURCES := $(shell find native -name '*.cpp' -o -name '*.hpp' -o -name '*.h')
# Editable installs redirect imports to src/, so only C++ and metadata changes need a rebuild.
BUILD_INPUTS := $(NATIVE) CMakeLists.txt pyproject.toml

.PHONY: help build demo test native-test torch-suite lint format bench sanitize clean
.DEFAULT_GOAL := help

help:
	@echo "make demo [RANKS=2]  build, then train the digits classifier on RANKS processes"
	@echo "make test            build, then run the C++ and Python tests (PYTEST_ARGS=…)"
	@echo "make torch-suite     torch's own tests of a backend, on hcomm and on gloo: build/torch-suite.md"
	@echo "make lint | format   check | fix style and types"
	@echo "make sanitize        C++ tests under ThreadSanitizer and Address+UndefinedBehaviorSanitizer"
	@echo "make bench           benchmarks"
	@echo "make build           build into $(VENV) (editable)"
	@echo "make clean           remove everything that was built"

$(VENV)/.created:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.tools: constraints.txt pyproject.toml | $(VENV)/.created
	$(PIP) install -c constraints.txt scikit-build-core nanobind cmake ninja click rich psutil
	touch $@

$(VENV)/.demo: $(VENV)/.tools
	$(PIP) install -c constraints.txt torch numpy scikit-learn
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) install -c constraints.txt pytest pytest-timeout hypothesis expecttest
	touch $@

$(VENV)/.lint: $(VENV)/.tools
	$(PIP) install -c constraints.txt ruff mypy clang-format
	touch $@

$(VENV)/.built: $(VENV)/.tools $(BUILD_INPUTS)
	PATH="$(abspath $(BIN)):$$PATH" $(PIP) install --no-build-isolation --no-deps \
	    -C cmake.define.HCOMM_WERROR=$(WERROR) -e .
	touch $@

build: $(VENV)/.built

demo: $(VENV)/.demo $(VENV)/.built
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node $(RANKS) examples/train_digits.py

# Sanitized programs run without address randomisation: older ThreadSanitizer runtimes cannot map their
# shadow memory under the 32 random bits of newer kernels. (Empty where a container forbids it.)
WITHOUT_ASLR := $(shell setarch $$(uname -m) --addr-no-randomize true 2> /dev/null && echo setarch $$(uname -m) --addr-no-randomize)
# $(call native_tests,folder,sanitizer,prefix of the test run)
define native_tests
	$(BIN)/cmake -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DHCOMM_PYTHON=OFF \
	    -DHCOMM_NATIVE_TESTS=ON -DHCOMM_WERROR=ON -DHCOMM_SANITIZE=$(2) > build/$(1).configure.log \
	    || { cat build/$(1).configure.log; exit 1; }
	$(BIN)/cmake --build build/$(1) -j $(JOBS) -- --quiet
	$(3) $(BIN)/ctest --test-dir build/$(1) --output-on-failure --no-tests=error
endef

build/.exists:
	mkdir -p build && touch $@

native-test: $(VENV)/.tools build/.exists
	$(call native_tests,native-tests,,)

test: $(VENV)/.test $(VENV)/.built native-test
	PYTHONPATH=tests $(BIN)/python -m pytest -p skip_limit --max-skips=$(MAX_SKIPS) $(PYTEST_ARGS)

torch-suite: $(VENV)/.test $(VENV)/.built build/.exists
	$(BIN)/python tests/torch_suite/compare.py build/torch-suite.md

sanitize: $(VENV)/.tools build/.exists
	$(call native_tests,thread-sanitizer,thread,TSAN_OPTIONS=halt_on_error=1 $(WITHOUT_ASLR))
	$(call native_tests,address-sanitizer,address,ASAN_OPTIONS=detect_leaks=1 $(WITHOUT_ASLR))

lint: $(VENV)/.test $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES)

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)

bench: $(VENV)/.demo $(VENV)/.built
	$(BIN)/python -m benchmarks

clean:
	rm -rf build dist $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
