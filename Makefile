# The verbs of Slipway. `make help` lists them; each sets up what it needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Every verb; none of them is a file.
.PHONY: $(shell sed -nE 's/^([a-z0-9-]+):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/slipway
PYTHON ?= python3
UV_VERSION := $(shell sed -nE 's/^uv==([^ ]*).*/\1/p' requirements/uv.txt)
UV := $(shell command -v uv 2>/dev/null || echo $(CACHE)/uv-$(UV_VERSION)/bin/uv)
VENV := .venv
PY := $(VENV)/bin/python
KERNELS := server/slipway_server/kernels/c/built
PLANE := plane/slipway_plane/_native.abi3.so
export PYTHONPATH := operator:gateway:jobs:server:cli:console:process:contracts:plane:.
export UV_LINK_MODE ?= hardlink
# Byte code is kept, whatever the shell says: without it each of a thousand processes compiles what it imports anew.
unexport PYTHONDONTWRITEBYTECODE
export MYPY_CACHE_DIR ?= $(CACHE)/mypy
# Tests run shuffled, and the same commit in the same order on every machine. Another order:
# make integration PYTEST_ADDOPTS=--randomly-seed=7
export PYTEST_ADDOPTS ?= --randomly-seed=1

help: ## list the verbs
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# Everything, or what the demo needs where nothing was asked for but the demo: minutes later, without torch.
setup: $(VENV)/.ready $(KERNELS) $(PLANE) ## install the locked dependencies into .venv, build the engine's kernels and the gateway's data plane

$(VENV)/.ready: pyproject.toml uv.lock | $(UV)
	@echo "installing the locked dependencies into $(VENV) (torch is big: the first time takes some minutes)"
	$(UV) sync --frozen --all-extras --python-preference only-system
	@touch $@ $(VENV)/.demo

$(VENV)/.demo: pyproject.toml uv.lock | $(UV)
	@if [ -e $(VENV)/.ready ]; then $(MAKE) --no-print-directory $(VENV)/.ready; \
	 else $(UV) sync --frozen --extra demo --python-preference only-system; fi
	@touch $@

$(KERNELS): $(wildcard $(KERNELS:%/built=%/*.[ch])) $(KERNELS:%/built=%/build.py) | $(VENV)/.ready
	$(PY) $(dir $@)build.py

# Where no cargo works there is no file, and each time looks for one again.
$(PLANE): $(wildcard plane/Cargo.*) plane/build.py $(shell find plane/src -name '*.rs') | $(VENV)/.ready
	$(PY) plane/build.py

$(UV):
	@echo "installing uv $(UV_VERSION) into the cache"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(CACHE)/uv-$(UV_VERSION) || { echo "python3 -m venv does not work: on Debian install python3-venv"; exit 1; }
	@$(CACHE)/uv-$(UV_VERSION)/bin/pip install --quiet --require-hashes -r requirements/uv.txt

wheel: setup ## dist/slipway-*.whl, with the engine's kernels compiled for this architecture
	$(PY) -m hatchling build -t wheel -d dist

fmt: setup ## format the code
	$(VENV)/bin/ruff format . && $(VENV)/bin/ruff check --fix .

check: setup ## lint, types, import contracts, the data plane by itself
	$(VENV)/bin/ruff format --check . && $(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) plane/build.py --check
	$(PY) -m tests.contract.figures

test: check tools unit ## everything: checks, unit; then in two lanes integration and the suite on a real cluster, traces
	@$(PY) -m devcluster built || $(PY) -m devcluster up --images
	@$(MAKE) --no-print-directory --jobs=2 components cluster nothing-left

# A cluster's tests wait where others compute, and what they wait for comes first: one after the other they take longest.
# What compiles for minutes comes before both lanes; what is third begins when one of them is done. A line says by its
# first word which lane it is from.
components:
	@nice -n 5 $(MAKE) MAKEFLAGS= integration masked 2>&1 | sed -u 's/^/components  /'

cluster:
	@$(MAKE) MAKEFLAGS= e2e 2>&1 | sed -u 's/^/cluster     /'

nothing-left:
	@$(MAKE) MAKEFLAGS= traces 2>&1 | sed -u 's/^/traces      /'

tools: setup ## build what tests need besides Python: kube-apiserver, etcd, kubectl, helm (once, cached)
	$(PY) -m devcluster build control-plane helm

histories: setup ## 10,000 random histories of a rollout against its invariants (about a quarter of an hour)
	SLIPWAY_HISTORIES=10000 $(VENV)/bin/pytest tests/operator/planning/test_invariants.py -q -n 2

# A test that failed runs once more by itself; if it passes then, the last lines name it as a defect (testkit/rerun.py).
# Tests wait as much as they compute, so that three at a time fill two cores; in a shuffled order, because the files
# that wait longest have the fewest tests, and xdist would put those last.
unit: setup ## what needs no other process and no torch
	$(PY) -m testkit.rerun unit tests -m"not integration and not e2e and not extended" -n3 --dist=worksteal --durations=12

integration: tools ## against real components: a kube-apiserver on loopback, processes, torch, whole models
	$(PY) -m testkit.rerun integration tests -m"integration and not extended" -n3 --dist=loadfile --no-loadscope-reorder --durations=12

oldest: tools ## the same against the API server of the oldest Kubernetes that is supported, 1.30 (compiled once, five minutes)
	$(PY) -m devcluster build kube-apiserver-oldest
	SLIPWAY_KUBERNETES=oldest $(VENV)/bin/pytest tests/crds tests/chart tests/operator -m "integration and not extended" \
	  -n 3 --dist loadfile --no-loadscope-reorder

# Not by what this machine has: the C kernels for AVX2 and then none, and torch and oneDNN take only what such a CPU knows.
masked: setup ## the engine as on a CPU without AVX512: with kernels for AVX2, and with torch alone (two minutes)
	for kernels in avx2 torch; do \
	  SLIPWAY_KERNELS=$$kernels ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(VENV)/bin/pytest \
	    tests/server/kernels tests/server/engine/test_equality.py tests/server/engine/test_quantization.py \
	    tests/server/engine/test_sampler.py -m "not extended" -n 2 --dist loadfile || exit 1; \
	done

extended: tools ## what takes minutes and is in no ordinary run: all that is marked so under tests/, and the gateway's tests without its data plane
	$(PY) -m devcluster build promtool fake-gcs-server h2spec cert-manager
	$(VENV)/bin/pytest tests -m extended -n 2 --dist loadfile --durations=12
	SLIPWAY_TEST_PLANE=off $(VENV)/bin/pytest tests/gateway -m "not extended" -n 2 --dist loadfile

e2e: setup ## the suite on a real cluster (brings one up; KUBECONFIG=... for another)
	$(PY) -m devcluster up
	$(PY) -m testkit.rerun e2e e2e -m"not extended" --durations=12

faults: setup ## six bad versions on a real cluster, each rolled back by itself (WRITE=1: the table goes into docs/faults.md; TRAFFIC=all: with a route, affinity, fallback and cache)
	$(PY) -m devcluster up
	SLIPWAY_TRAFFIC=$(TRAFFIC) $(VENV)/bin/pytest e2e/test_faults.py -s $(if $(WRITE),--faults-table docs/faults.md)

judged: setup ## on a real cluster: kills during analyses, mirrored requests, twin shadows, scorers, feedback, baseline pods (about fifty minutes)
	$(PY) -m devcluster up
	$(VENV)/bin/pytest e2e/test_restarted.py e2e/test_shadow.py e2e/test_twin_shadow.py e2e/test_scorer.py e2e/test_feedback.py e2e/test_baseline.py e2e/test_quantize.py \
	  e2e/test_predict.py::test_a_canary_that_predicts_something_else_is_rejected_before_a_client_has_a_prediction_of_it -s

alerts: setup ## on a real cluster: a real Prometheus with the chart's alerts, silent while all is well, and what makes them fire (four minutes)
	$(PY) -m devcluster up
	$(VENV)/bin/pytest e2e/test_alerts.py -s

promote20: setup ## a healthy version on a real cluster, promoted by itself twenty times (about a quarter of an hour; TRAFFIC=all as for faults)
	$(PY) -m devcluster up
	SLIPWAY_TRAFFIC=$(TRAFFIC) $(VENV)/bin/pytest e2e/test_healthy_twenty.py -s -k twenty_times

release20: setup ## the same by pairs and a ramp, with the built-in llm-release at 5 requests a second (70 minutes; SLIPWAY_RELEASES=2)
	$(PY) -m devcluster up
	$(VENV)/bin/pytest e2e/test_healthy_twenty.py -s -k ramp_up

wake20: setup ## to zero and back twenty times on a real cluster, asked at random moments (about eight minutes)
	$(PY) -m devcluster up
	$(VENV)/bin/pytest e2e/test_scale_to_zero.py -s -k twenty

autoscale: setup ## load steps on a real cluster, with what tells demand gone now and then (WRITE=1: docs/autoscaling.md)
	$(PY) -m devcluster up
	$(VENV)/bin/pytest e2e/test_autoscaling.py -s \
	  $(if $(WRITE),--autoscaling-page docs/autoscaling.md --autoscaling-picture docs/pictures/autoscale.png)

scarce: setup ## rollouts with 0, 1 and N spare GPUs (simulated) on a real cluster: each finishes or steps back
	$(PY) -m devcluster up
	$(VENV)/bin/pytest e2e/test_scarce_gpus.py -s

hostile: setup ## on a real cluster: a hostile namespace beside two victims, then one whose engines and hooks do harm, measured with and without it (twenty minutes; QUICK=1: ten)
	$(PY) -m devcluster up
	$(VENV)/bin/pytest e2e/test_hostile.py e2e/test_hostile_engine.py -s

engines: setup ## other engines on a real cluster, vLLM, llama.cpp, a simulated fleet: canaries, judge, scaling, drain (an hour, 20 GB)
	$(PY) -m devcluster up
	$(VENV)/bin/pytest e2e/engines -s

nodes: setup ## three nodes: drained, announced to end, lost, under load; weights kept on them (a quarter of an hour)
	SLIPWAY_CLUSTER=slipway-nodes $(PY) -m devcluster up --workers 2
	SLIPWAY_CLUSTER=slipway-nodes $(VENV)/bin/pytest e2e/test_nodes.py e2e/test_model_cache.py -s
	SLIPWAY_CLUSTER=slipway-nodes $(PY) -m devcluster down

batches: setup ## on a real cluster: a batch during a rollout, its process ends in the middle (some minutes)
	$(PY) -m devcluster up
	$(VENV)/bin/pytest e2e/test_jobs.py -s

standby: setup ## on a real cluster: two operators, a helm upgrade and the end of the one that writes in the middle of a canary (three minutes)
	$(PY) -m devcluster up
	$(VENV)/bin/pytest e2e/test_standby.py -s

registry: setup ## on a real cluster with a real MLflow server: an alias that moves is promoted, one that moves to a broken version rolled back (five minutes)
	$(PY) -m devcluster up
	$(VENV)/bin/pytest e2e/test_registry.py -s

tenants: setup ## on a real cluster: two gateways count limits in a Redis and bills in a PostgreSQL, while a gateway and the Redis go (two minutes)
	$(PY) -m devcluster up
	$(VENV)/bin/pytest e2e/test_tenants.py -s

internal-tls: setup ## on a real cluster: TLS inside the release is turned on while a model serves, and its authority rotated (ten minutes)
	$(PY) -m devcluster up
	$(VENV)/bin/pytest e2e/test_internal_tls.py -s

former-release: setup ## on a real cluster: this release and the one before it are exchanged in the middle of rollouts (half an hour; SLIPWAY_FORMER=COMMIT)
	$(PY) -m devcluster up
	$(VENV)/bin/pytest e2e/test_former_release.py -s

traces: setup ## that taking a cluster away leaves no trace, on a second one beside the usual one (a minute)
	$(VENV)/bin/pytest tests/devcluster -m e2e

gpu-kernels: setup ## the GPU's kernels, interpreted in all shapes and compiled for Hopper; needs no GPU (some minutes)
	$(VENV)/bin/pytest tests/server/kernels -m extended -n 2

crash: tools ## kill the operator before and after each of its API calls (QUICK=1: a sample)
	$(PY) -m tests.crash

demo: $(VENV)/.demo ## the main job, live: serve, canary, promote, roll back, abort, scale
	$(PY) -m examples.demo

chaos: setup ## ten rollouts on a real cluster under load, with kill -9 at random (about 20 minutes; QUICK=1: two)
	$(PY) -m bench.chaos

soak: setup ## random, broken and abandoned requests against the model server: nothing may be left (MINUTES=20)
	$(PY) -m bench.soak $(if $(SECONDS),--seconds $(SECONDS),--minutes $(or $(MINUTES),20))

fuzz: setup ## hostile requests against a live engine, directly and through a gateway (MINUTES=10)
	$(PY) -m bench.fuzz $(if $(SECONDS),--seconds $(SECONDS),--minutes $(or $(MINUTES),10)) $(if $(SEED),--seed $(SEED))

recount: setup ## each request of the gateway's fast lane is counted again, and clients, servers and counters are compared (an hour on two cores; REQUESTS=1000000: six minutes)
	$(PY) -m tests.plane.recount --requests $(or $(REQUESTS),10000000) $(if $(SEED),--seed $(SEED))

bench-engine: setup ## our engine beside vLLM, llama.cpp, transformers on the CPU (two to three hours; an hour with ARGS="--bars-only --no-open"; QUICK=1: five minutes)
	UV=$(UV) $(PY) -m bench.engine $(ARGS)

bench-sampling: setup ## what sampling and grammars cost the engine at batch 32, in turns with and without (5 minutes; ARGS=--help)
	$(PY) -m bench.sampling sampling $(ARGS)
	$(PY) -m bench.sampling grammars $(ARGS)

bench-gpu: setup ## the engine on a GPU: shares of its bandwidth, transformers and vLLM beside it, tokens (10 minutes)
	$(PY) -m bench.gpu $(ARGS)

bench-gateway: setup ## the gateway in each lane beside nginx, HAProxy, Envoy, routers of SGLang and vLLM, LiteLLM: CPU, latency, streams, TLS, gRPC (half an hour; QUICK=1: three minutes; ARGS=--help)
	UV=$(UV) $(PY) -m bench.gateway $(ARGS)

bench-predict: setup ## classic models beside MLServer, LitServe, BentoML, Ray Serve, PyTriton (an hour; QUICK=1: ours alone; ARGS=--help)
	UV=$(UV) $(PY) -m bench.predict $(ARGS)

bench-gateway-memory: setup ## a gateway at its memory limit among hostile clients: sheds, is never killed (10 minutes; QUICK=1)
	$(PY) -P bench/gateway_memory.py

bench-batches: setup ## what a batch costs the requests beside it (6 minutes; QUICK=1: two; ARGS=--help)
	$(PY) -m bench.batches $(ARGS)

bench-shadow: setup ## what mirroring adds to the latency of the clients that are mirrored (a minute; QUICK=1)
	$(PY) -m bench.shadow

bench-twin-shadow: setup ## what a twin shadow of all sessions adds to clients' latency, and that it gives way first (3 minutes; QUICK=1)
	$(PY) -m bench.twin_shadow

bench-routing: setup ## which pod gets a prompt: our rule beside llm-d's, KubeAI's, least load and chance, simulated and on real pods (15 minutes; QUICK=1: one; ARGS=--help)
	$(PY) -m bench.routing $(ARGS)

bench-capacity: setup ## the number of pods by our rule beside HPA, KEDA, llm-d's law and a clairvoyant planner, simulated (three minutes of CPU; ARGS="--trace daily")
	$(PY) -m bench.capacity --page $(ARGS)

bench-caches: setup ## hits and misses of a cache of responses, beside nginx that serves the same bytes (a minute; QUICK=1: seconds)
	$(PY) -m bench.caches

bench-operator: setup ## one operator with 100, 1,000 and 5,000 ModelDeployments, with and without pods (15 minutes; QUICK=1: two)
	$(PY) -m devcluster build control-plane kube-controller-manager kube-scheduler kwok
	$(PY) -m bench.operator $(ARGS)

judge-sim: setup ## simulated canaries, judged by Slipway and by others: false rollbacks, time to detection (QUICK=1: 200 runs)
	$(PY) -m bench.judge_sim

accuracy-sim: setup ## a thousand simulated years of spec.accuracy: false alarms, labels until a drop is found (QUICK=1: a hundred years)
	$(PY) -m bench.accuracy_sim

up: $(VENV)/.demo ## bring the development cluster up
	$(PY) -m devcluster up

down: $(VENV)/.demo ## take the development cluster away without a trace
	$(PY) -m devcluster down

status: $(VENV)/.demo ## what the development cluster is doing
	$(PY) -m devcluster status

train: setup ## train the two tiny models anew (about 5 minutes)
	$(PY) examples/train_tiny.py

generate: setup ## write the CRDs and the reference pages anew
	$(PY) docs/generate.py

lock: | $(UV) ## resolve the dependencies anew
	$(UV) lock --upgrade

clean: ## remove what was built in the tree (the cache stays)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
