# Millstream. `make help` lists the targets; each does its own set-up.
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
TYPES := $(wildcard src/millstream/*/*.pxd src/millstream/*/*/*.pxd)
KERNELS := $(TYPES) $(TYPES:.pxd=.py)
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
# Bytecode is kept, also where the environment says otherwise: every worker of the tests, and every
# process that they start, would compile all of it anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help run test coverage sim lint format bench bench-worker soak sanitize scale wheel docs lock clean pipeline-demo

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 15

run: $(VENV)/.runtime ## start a broker on 127.0.0.1:9092 (data in ./millstream-data, metrics on 127.0.0.1:9644)
	$(BIN)/millstream serve $(ARGS)

test: $(VENV)/.dev ## set everything up and run the tests
	@scripts/setup-test-tools
	$(BIN)/pytest -n 4 --dist loadgroup --no-loadscope-reorder -m "not soak" $(ARGS)

coverage: $(VENV)/.dev ## branch coverage of src/ by the tests that mirror it; names the packages below 90 %
	@scripts/setup-test-tools
	@rm -rf .cache/coverage && mkdir -p .cache/coverage
	$(BIN)/pytest -n 4 --dist loadgroup --no-loadscope-reorder -m "not soak" --cov --cov-report= \
		$(patsubst src/millstream/%/__init__.py,tests/%,$(wildcard src/millstream/*/__init__.py)) $(ARGS); \
		code=$$?; $(BIN)/python scripts/coverage_by_package.py && exit $$code

sim: $(VENV)/.dev ## simulated clusters under faults, seed after seed until stopped (ARGS='--seed N --trace' replays one)
	PYTHONHASHSEED=0 PYTHONPATH=tests $(BIN)/python -m sim $(ARGS)

lint: $(VENV)/.dev ## ruff, strict mypy, import contracts, dead code, file map, links, spelling, style, vulnerabilities
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/dead_code.py
	$(BIN)/python scripts/file_map.py --check
	$(BIN)/python scripts/check_links.py
	$(BIN)/codespell
	$(BIN)/python scripts/check_style.py
	$(BIN)/python scripts/audit_dependencies.py

format: $(VENV)/.dev ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev ## Millstream next to Apache Kafka on this machine, as ratios
	@scripts/setup-test-tools
	$(BIN)/python -m bench $(ARGS)

bench-worker: $(VENV)/.dev $(VENV)/.bench ## Millstream's worker next to FastStream and Celery, in messages per second
	@scripts/setup-test-tools
	$(BIN)/python -m bench.worker $(ARGS)

soak: $(VENV)/.dev ## the long runs that `make test` leaves out (crash rounds, fuzzing, 100,000 topics)
	@scripts/setup-test-tools
	$(BIN)/pytest -m soak $(ARGS)

sanitize: $(VENV)/.dev ## the kernels under AddressSanitizer and UBSan, with ten times as many random inputs (needs gcc)
	KERNEL_CFLAGS="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined" KERNEL_EXAMPLES=400 \
		LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc $(BIN)/pytest -s --timeout 3600 tests/records $(ARGS)

pipeline-demo: BEGUN := $(shell date +%s)
pipeline-demo: $(VENV)/.dev ## orders through a Spark pipeline, with a broker of its own, to a picture and an audit
	@scripts/install-system-packages default-jre-headless
	$(BIN)/python -m examples.orders --begun $(BEGUN) $(ARGS)

docs: $(VENV)/.dev ## build the documentation into build/docs (offline; warnings are errors)
	$(BIN)/sphinx-build -b html -W --keep-going -q -d build/doctrees docs build/docs

wheel: docs ## build dist/*.whl with compiled kernels and the documentation (needs a C compiler)
	MILLSTREAM_PURE=0 $(BIN)/python -m build --wheel --no-isolation

lock: ## resolve requirements/*.txt anew from pyproject.toml (needs uv)
	$(COMPILE) --group build --group test --group lint --group docs \
		--all-extras pyproject.toml -o requirements/dev.txt
	$(COMPILE) --constraints requirements/dev.txt --group build pyproject.toml -o requirements/runtime.txt
	$(COMPILE) --constraints requirements/dev.txt --group bench pyproject.toml -o requirements/bench.txt

clean: ## remove what was built and downloaded (not your data)
	rm -rf $(VENV) .cache build dist src/*.egg-info
	find src -name '*.so' -delete

$(VENV)/.runtime: requirements/runtime.txt pyproject.toml setup.py $(KERNELS)
	@scripts/setup-venv $(VENV) requirements/runtime.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml setup.py $(KERNELS)
	@scripts/setup-venv $(VENV) requirements/dev.txt
	@touch $@ $(VENV)/.runtime

# FastStream and Celery for `make bench-worker`, in an environment of their own: nothing else needs them. Where they
# cannot be installed, their rows say so.
$(VENV)/.bench: requirements/bench.txt $(VENV)/.dev
	@rm -rf $(VENV)/bench && $(BIN)/python -m venv $(VENV)/bench
	@$(VENV)/bench/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
		-r requirements/bench.txt || (rm -rf $(VENV)/bench; echo "FastStream and Celery could not be installed")
	@touch $@
