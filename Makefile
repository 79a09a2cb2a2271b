# The one entry point: `make` lists the targets. Continuous integration calls the same ones (.ci/run).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

CARGO ?= cargo
# With CI set, Cargo.lock is not touched, and what is missing is an error instead of a warning.
LOCKED := $(if $(CI),--locked)
ARGS ?=

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Three tiers. `quick` is the loop while writing code; `test` decides whether a change is right, by what
# happened and never by how long it took; `nightly` measures, storms and searches.

.PHONY: quick
quick: check ## Format, lints, house rules, unit tests, a smoke of the whole proxy (8 minutes cold, 2 warm)
	$(CARGO) test $(LOCKED) --lib --bin fanoutctl --test direct --test command --no-run
	$(CARGO) test $(LOCKED) --lib --bin fanoutctl --test command -- --quiet
	$(CARGO) test $(LOCKED) --test direct -- --quiet $(SMOKE)

# What a client of the proxy does first: LIST, GET, WATCH, resume, pass-through, a drain.
SMOKE := fanout:: forward:: initial:: lists:: resume:: shutdown::

.PHONY: nightly
nightly: ## Everything that measures, storms, kills or searches, with a summary; resumable (ARGS="--list", ARGS="--only siege")
	@tests/nightly.py $(SEED:%=--seed %) $(ARGS)

RUNS ?= 20

.PHONY: flakes
flakes: ## `make test` again and again beside busy loops: does any test fail by chance? (RUNS=20 ARGS="--stalls", "--alone")
	@tests/kube/build.sh
	@CARGO="$(CARGO)" tests/flakes.py --runs $(RUNS) $(ARGS)

.PHONY: check
check: fmt-check clippy tidy ## Format, lints, house rules: what `make quick` begins with

.PHONY: fmt
fmt: ## Format the Rust sources
	$(CARGO) fmt

.PHONY: fmt-check
fmt-check:
	$(CARGO) fmt --check

# The tests of the nightly tier are not part of --all-targets.
NIGHTLY_TESTS := --test conformance-nightly --test direct-nightly
# Building the test of fanoutctl builds fanoutctl, which some tests of the daemon start.
TOOLS_TEST := --test command

.PHONY: clippy
clippy: ## Lints, as errors
	$(CARGO) clippy $(LOCKED) --all-targets -- -D warnings
	$(CARGO) clippy $(LOCKED) $(NIGHTLY_TESTS) --test simulation -- -D warnings

# `cargo test` runs these too; alone they need nothing built.
.PHONY: tidy
tidy: ## The house rules (tests/tidy.rs), in seconds
	@mkdir -p target
	CARGO_MANIFEST_DIR=$(CURDIR) rustc --edition 2024 -O --test tests/tidy.rs -o target/tidy
	target/tidy --quiet

# The version whose modules the public proxy has complete.
VALE := github.com/vale-cli/vale/v3/cmd/vale@v3.22.0

.PHONY: prose
prose: ## The language of comments and documents, by Vale with the word list of tests/vale (Go; two minutes when cold)
	@test -x target/tools/bin/vale || GOBIN=$(CURDIR)/target/tools/bin go install $(VALE)
	@git ls-files '*.rs' '*.md' | xargs target/tools/bin/vale --config tests/vale/vale.ini --output line

.PHONY: macos
macos: ## Does it compile for macOS? Types only: nothing is linked or run (rustup's target; two minutes when cold)
	@CARGO="$(CARGO)" tests/macos.sh $(LOCKED)

# What reads the dependencies, and `make nightly` runs: from crates.io, in these versions, built without optimization into the
# checkout, unless cargo has it already. CI installs what is missing; elsewhere it is skipped with a warning.
TOOLS := cargo-machete@0.9.2 cargo-deny@0.20.2
tools machete deny: export PATH := $(CURDIR)/target/tools/bin:$(PATH)
machete deny: $(if $(CI),tools)

# install-tools NAME@VERSION...: those that cargo does not have yet.
define install-tools
for tool in $(1); do \
  name=$${tool%@*}; \
  if ! $(CARGO) "$${name#cargo-}" --version >/dev/null 2>&1; then \
    CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) install --quiet --locked --debug --root target/tools "$$tool"; \
  fi; \
done
endef

.PHONY: tools
tools: ## Install cargo-machete and cargo-deny into target/tools (minutes)
	@$(call install-tools,$(TOOLS))

.PHONY: machete
machete: ## Dependencies that nothing uses
	@if ! $(CARGO) machete --version >/dev/null 2>&1; then \
	  echo "SKIPPED: cargo-machete is not installed (make tools)"; exit 0; \
	fi; \
	$(CARGO) machete

.PHONY: deny
deny: ## Licences, advisories and bans of dependencies (deny.toml)
	@if ! $(CARGO) deny --version >/dev/null 2>&1; then \
	  echo "SKIPPED: cargo-deny is not installed (make tools)"; exit 0; \
	fi; \
	$(CARGO) deny $(LOCKED) check bans licenses sources; \
	if $(CARGO) deny fetch db >/dev/null 2>&1; then $(CARGO) deny $(LOCKED) check advisories; \
	else echo "SKIPPED: the advisory database cannot be reached"; fi

.PHONY: test
test: ## Unit, direct and conformance tests, on a real control plane if it can be had (some 20 minutes cold)
	@tests/run.sh $(LOCKED) $(ARGS)

.PHONY: conformance-release
conformance-release: ## The conformance tests on a release build, which is what nodes run
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	KUBE_FANOUT_BINARY=$(CURDIR)/target/release/kube-fanout \
	  $(CARGO) test $(LOCKED) --test conformance $(ARGS)

.PHONY: measures
measures: ## Lines, words, files, features and dependencies (BASE=<commit> compares)
	@tests/measures.py $(BASE)

.PHONY: e2e
e2e: ## Kubernetes' own specs, directly and through the proxy: the same ones pass (ten minutes; minutes more when cold)
	@tests/e2e/run.sh $(ARGS)

.PHONY: integration
integration: ## Kubernetes' own integration tests, directly and with the proxy in front (hours; ARGS="client/... --run Watch")
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	@tests/integration/run.py $(ARGS)

.PHONY: judges
judges: ## Tests of controller-runtime, kube-rs and storage, directly and through the proxy (ARGS=storage; minutes more when cold)
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	@tests/judges/run.py $(ARGS)

.PHONY: clients
clients: ## Client libraries of four languages, followed through kills of proxy and apiserver (ARGS="kopf"; needs pip, npm, Maven)
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	@tests/judges/clients.py $(ARGS)

# `make test` draws the same in every run. The targets below draw something new each time; SEED=n, which a run prints
# first and when it fails, repeats it.
ifeq ($(origin SEED),undefined)
SEED := $(shell echo $$RANDOM)
endif

.PHONY: measured
measured: ## The tests of the nightly tier in their short forms: what measures, storms or kills (half an hour)
	@tests/kube/build.sh
	$(foreach name,DIFFERENTIAL AUTHORIZATION HOSTILE NEIGHBOURING VERIFY FAULTS IMPERFECT FAILOVER OUTAGES,$(name)_SEED=$(SEED)) \
	  $(CARGO) test $(LOCKED) $(NIGHTLY_TESTS) $(TOOLS_TEST) --no-fail-fast $(ARGS) -- --nocapture --test-threads 2

CASES ?= 2048

.PHONY: properties
properties: ## Property tests on fresh cases (CASES=2048 SEED=n)
	PROPTEST_RNG_SEED=$(SEED) PROPTEST_CASES=$(CASES) $(CARGO) test $(LOCKED) --lib $(ARGS)

SEEDS ?= 5
REQUESTS ?= 20000

.PHONY: differential
differential: ## Random requests to proxy and apiserver, answered alike? (SEEDS=5 REQUESTS=20000 SEED=n)
	@tests/kube/build.sh
	$(SEED:%=DIFFERENTIAL_SEED=%) DIFFERENTIAL_SEEDS=$(SEEDS) DIFFERENTIAL_REQUESTS=$(REQUESTS) \
	  $(CARGO) test $(LOCKED) --test conformance $(ARGS) -- --nocapture random_requests_get_the_same_responses

TRIPLES ?= 20000
REVIEWS ?= 100000

.PHONY: authorization
authorization: ## Random callers, rules and questions: proxy and apiserver say the same? (TRIPLES=20000 REVIEWS=100000 SEED=n)
	@tests/kube/build.sh
	$(SEED:%=AUTHORIZATION_SEED=%) AUTHORIZATION_TRIPLES=$(TRIPLES) AUTHORIZATION_REVIEWS=$(REVIEWS) \
	  $(CARGO) test $(LOCKED) --test conformance $(ARGS) -- --nocapture decisions_match_the_apiserver

TOKENS ?= 20000

.PHONY: verified-tokens
verified-tokens: ## Random service account tokens: proxy and apiserver say the same? (TOKENS=20000 SEED=n)
	@tests/kube/build.sh
	$(SEED:%=TOKENS_SEED=%) TOKENS=$(TOKENS) \
	  $(CARGO) test $(LOCKED) --test conformance $(ARGS) -- --nocapture verified_tokens_are_those

TRIALS ?= 500
LOCAL_TRIALS ?= 300

.PHONY: revocation
revocation: ## How long a watch outlives the right to it, by what took the right away (TRIALS=500 LOCAL_TRIALS=300 of each)
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	KUBE_FANOUT_BINARY=$(CURDIR)/target/release/kube-fanout REVOCATION_TRIALS=$(TRIALS) REVOCATION_LOCAL_TRIALS=$(LOCAL_TRIALS) \
	  $(CARGO) test $(LOCKED) --test conformance $(ARGS) -- --nocapture --test-threads 1 revocation::

AGENTS ?= 600

.PHONY: agents-at-rest
agents-at-rest: SECONDS = 600
agents-at-rest: ## Reviews of AGENTS that only watch, with local decisions and asked (AGENTS=600 SECONDS=600)
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	KUBE_FANOUT_BINARY=$(CURDIR)/target/release/kube-fanout RUST_LOG=info \
	  AGENTS=$(AGENTS) AGENTS_SECONDS=$(SECONDS) AGENTS_SPEED=10 \
	  $(CARGO) test $(LOCKED) --test conformance-nightly $(ARGS) -- --nocapture agents_at_rest::

.PHONY: long-outage
long-outage: SECONDS = 300
long-outage: ## The apiserver away for SECONDS: who is answered, by tokens and rules that the proxy checks (SECONDS=300)
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	KUBE_FANOUT_BINARY=$(CURDIR)/target/release/kube-fanout RUST_LOG=info OUTAGE_SECONDS=$(SECONDS) \
	  $(CARGO) test $(LOCKED) --test conformance-nightly $(ARGS) -- --nocapture long_outage::

.PHONY: label
label: ## Clients by their in-cluster configuration, of pods with the label, while the proxy is killed, updated, absent
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	KUBE_FANOUT_BINARY=$(CURDIR)/target/release/kube-fanout RUST_LOG=info \
	  $(CARGO) test $(LOCKED) --test conformance-nightly $(ARGS) -- --nocapture absent::

.PHONY: auth-costs
auth-costs: ## CPU of a watch's opening and of a cached GET, by who decides (five minutes; release build)
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	KUBE_FANOUT_BINARY=$(CURDIR)/target/release/kube-fanout RUST_LOG=info AUTH_TOKENS=300 AUTH_EACH=30 AUTH_PERCENT=150 \
	  $(CARGO) test $(LOCKED) --test conformance-nightly $(ARGS) -- --nocapture auth_costs::

.PHONY: hostile
hostile: ## Malformed and hostile requests: nobody is taken for another, nothing is smuggled (REQUESTS=20000 SEED=n)
	@tests/kube/build.sh
	$(SEED:%=HOSTILE_SEED=%) HOSTILE_REQUESTS=$(REQUESTS) \
	  $(CARGO) test $(LOCKED) --test conformance $(ARGS) -- --nocapture hostile_requests_cannot_spoof_identity

QUESTIONS ?= 20000

.PHONY: neighbouring
neighbouring: ## Rights to one name or namespace: not one byte of its neighbours (QUESTIONS=20000 SEED=n)
	@tests/kube/build.sh
	$(SEED:%=NEIGHBOURING_SEED=%) NEIGHBOURING_QUESTIONS=$(QUESTIONS) \
	  $(CARGO) test $(LOCKED) --test conformance $(ARGS) -- --nocapture neighbouring_names::

# The minor before the one of tests/kube/go.mod.
PREVIOUS := 1.36

.PHONY: upgrade
upgrade: ## From the previous Kubernetes minor: no state of the old release, no watch ended (minutes more when cold)
	@tests/kube/build.sh
	@tests/kube/build.sh tests/kube target/testbed/kube-testbed-$(PREVIOUS) $(PREVIOUS).mod
	KUBE_TESTBED_PREVIOUS=$(CURDIR)/target/testbed/kube-testbed-$(PREVIOUS) \
	  $(CARGO) test $(LOCKED) --test conformance-nightly $(ARGS) -- --nocapture --test-threads 1 upgrade::

DEFINITIONS ?= 1000

.PHONY: discovery
discovery: ## What a client's start costs the apiserver beside DEFINITIONS, and how late a change is seen (release build)
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	KUBE_FANOUT_BINARY=$(CURDIR)/target/release/kube-fanout RUST_LOG=info DISCOVERY_DEFINITIONS=$(DEFINITIONS) \
	  $(CARGO) test $(LOCKED) --test conformance $(ARGS) -- --nocapture --test-threads 1 discovery_costs::

MINORS ?=

.PHONY: matrix
matrix: ## Answers of every Kubernetes minor, compared: writes docs/dev/COMPARED.md (MINORS="1.36 1.35"; minutes more when cold)
	@CARGO="$(CARGO)" python3 tests/matrix.py --minors "$(MINORS)" -- $(LOCKED) $(ARGS)

SECONDS ?= 60

.PHONY: verify
verify: ## Does the proxy keep its promises while the apiserver is killed? Judged by etcd (SECONDS=60 SEED=n)
	@tests/kube/build.sh
	$(SEED:%=VERIFY_SEED=%) VERIFY_SECONDS=$(SECONDS) \
	  $(CARGO) test $(LOCKED) --test conformance-nightly $(TOOLS_TEST) $(ARGS) -- --nocapture verify::verify_passes_while

.PHONY: endurance
endurance: ## Kills and pauses for long, judged run by run and added up (SECONDS=3600 ARGS="--faults apiserver|proxy|both")
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	@python3 tests/endurance.py run --seconds $(SECONDS) $(SEED:%=--seed %) $(ARGS)

.PHONY: ingest
ingest: ## Events a second that one feed takes, and the CPU of each (release build; five minutes)
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	@python3 benches/ingest.py $(ARGS)

.PHONY: size-check
size-check: ## `fanoutctl size` beside what a proxy takes: memory and bytes within a fifth (release build; five minutes)
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	@python3 benches/size.py $(ARGS)

.PHONY: robustness
robustness: ## Records of verify while apiserver and proxy are killed, judged by etcd's own validators (SECONDS=60 SEED=n)
	@tests/kube/build.sh
	@tests/kube/build.sh tests/judges/robustness target/judges/robustness
	$(CARGO) build --release $(LOCKED)
	@python3 tests/endurance.py run --dir target/robustness --seconds 1 --run-seconds $(SECONDS) --patience 30 \
	  --fault-every 1 6 --judge target/judges/robustness $(SEED:%=--seed %) $(ARGS)

SAMPLE ?=

# Tokio lets its choices be seeded in a build of its own.
SIMULATION := RUSTFLAGS="--cfg tokio_unstable" $(CARGO) test --target-dir target/simulation --test simulation

.PHONY: simulation
simulation: SEEDS = 10000
simulation: ## The whole proxy on virtual time: does any seed break a promise? (SEEDS=10000 SEED=n; half an hour)
	$(SEED:%=SIMULATION_SEED=%) SIMULATION_SEEDS=$(SEEDS) \
	  $(SIMULATION) $(LOCKED) $(ARGS) -- --nocapture

.PHONY: mutants
mutants: ## Known bugs, put back one by one: does a test notice each? (ARGS="5 9", or SAMPLE=4 SEED=n; 20 minutes)
	@SAMPLE=$(SAMPLE) SEED=$(SEED) tests/mutants.sh $(ARGS)

.PHONY: faults
faults: ## Bytes in flight are cut, held, lost and spoilt on both sides of the proxy (SECONDS=60 SEED=n)
	@tests/kube/build.sh
	$(SEED:%=FAULTS_SEED=%) FAULTS_SECONDS=$(SECONDS) \
	  $(CARGO) test $(LOCKED) --test conformance-nightly $(ARGS) -- --nocapture faults::guarantees_hold

SEQUENCES ?= 100

.PHONY: outages
outages: ## Drawn sequences of kills of apiserver, proxy and both: does a watch end? (SEQUENCES=100 SEED=n; an hour)
	@tests/kube/build.sh
	$(SEED:%=OUTAGES_SEED=%) OUTAGES_SEQUENCES=$(SEQUENCES) \
	  $(CARGO) test $(LOCKED) --test conformance-nightly $(ARGS) -- --nocapture outages::

.PHONY: goaways
goaways: REQUESTS = 10000
goaways: ## Before an apiserver that closes connections at random: does a request fail? (REQUESTS=10000, each of 4 kinds)
	@tests/kube/build.sh
	GOAWAY_REQUESTS=$(REQUESTS) $(CARGO) test $(LOCKED) --test conformance $(ARGS) -- --nocapture goaways::

RATE ?=

.PHONY: failover
failover: ## Informers go among two tiers and the apiserver, all killed (INFORMERS=1000 SECONDS=60 RATE=25 SEED=n)
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	KUBE_FANOUT_BINARY=$(CURDIR)/target/release/kube-fanout \
	  $(SEED:%=FAILOVER_SEED=%) FAILOVER_SECONDS=$(SECONDS) FAILOVER_INFORMERS=$(or $(INFORMERS),1000) \
	  $(RATE:%=FAILOVER_RATE=%) \
	  $(CARGO) test $(LOCKED) --test conformance-nightly $(ARGS) -- --nocapture failover::informers

LEAVES ?= 200
REAL_NODES ?=

.PHONY: tree
tree: ## Leaves behind two zones: what the apiserver sees, how late the last is, a zone killed (LEAVES=200 SECONDS=60 REAL_NODES=500)
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	KUBE_FANOUT_BINARY=$(CURDIR)/target/release/kube-fanout RUST_LOG=info \
	  $(REAL_NODES:%=TREE_NODES=%) TREE_LEAVES=$(LEAVES) TREE_WRITES=200 TREE_SECONDS=$(SECONDS) TREE_IDLE_SECONDS=$(SECONDS) \
	  $(CARGO) test $(LOCKED) --test conformance-nightly $(ARGS) -- --nocapture --test-threads 1 tree::

AGE ?= 60

.PHONY: rebalance
rebalance: ## A third replica gets its share, then one drains: how soon, how many at once (AGE=60 WATCHES=200)
	REBALANCE_AGE_SECONDS=$(AGE) $(WATCHES:%=REBALANCE_WATCHES=%) \
	  $(CARGO) test $(LOCKED) --test direct-nightly $(ARGS) -- --nocapture rebalance::

NODES ?= 10

.PHONY: cluster
cluster: ## Controllers, scheduler, kubelets: through proxies as without? (NODES=10 ROUNDS=3; a quarter of an hour)
	@tests/kube/build.sh
	@tests/kube/build.sh tests/cluster target/testbed/kube-cluster
	$(CARGO) build --release $(LOCKED)
	KUBE_FANOUT_BINARY=$(CURDIR)/target/release/kube-fanout RUST_LOG=info \
	  KUBE_CLUSTER=$(CURDIR)/target/testbed/kube-cluster CLUSTER_NODES=$(NODES) CLUSTER_ROUNDS=$(or $(ROUNDS),3) \
	  $(CARGO) test $(LOCKED) --test conformance --test conformance-nightly $(ARGS) -- \
	  --nocapture --test-threads 1 cluster:: install::install_guide_issues_node_certificate

.PHONY: printed
printed: ## Tables of random custom resources, as kubectl and k9s request them: the same bytes? (KINDS=50 SEED=n)
	@tests/kube/build.sh
	$(SEED:%=PRINTED_SEED=%) PRINTED_KINDS=$(or $(KINDS),50) \
	  $(CARGO) test $(LOCKED) --test conformance $(ARGS) -- --nocapture printed::

.PHONY: imperfect
imperfect: ## Two apiservers that lag, pause, come and go, and an etcd that forgets: promises kept? (SECONDS=60 SEED=n)
	@tests/kube/build.sh
	$(SEED:%=IMPERFECT_SEED=%) IMPERFECT_SECONDS=$(SECONDS) \
	  $(CARGO) test $(LOCKED) --test conformance-nightly $(ARGS) -- --nocapture --test-threads 1 imperfect::

.PHONY: fuzz
fuzz: ## Bytes that no peer should send, for every parser, each for SECONDS (SECONDS=60 ARGS="events pages")
	@fuzz/run.sh $(SECONDS) $(ARGS)

.PHONY: corpus
corpus: ## Write the corpus of the fuzz targets anew, from a real apiserver
	@tests/kube/build.sh
	CORPUS_WRITE=1 $(CARGO) test $(LOCKED) --test conformance $(ARGS) -- --nocapture corpus::

.PHONY: neighbours
neighbours: ## Refused requests, unread logs, guessed tokens: the watches of others go on (SECONDS=60 UNREAD=400)
	@tests/kube/build.sh
	NEIGHBOURS_SECONDS=$(SECONDS) NEIGHBOURS_UNREAD=$(or $(UNREAD),400) \
	  $(CARGO) test $(LOCKED) --test conformance-nightly $(ARGS) -- --nocapture --test-threads 1 neighbours::

STEADY ?= 3600

.PHONY: siege
siege: ## What attackers cost others, on a release build (SECONDS=60 STEADY=3600 ATTACK=storm; all take hours)
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	KUBE_FANOUT_BINARY=$(CURDIR)/target/release/kube-fanout \
	  SIEGE_OBJECTS=10000 SIEGE_SECONDS=$(SECONDS) SIEGE_RATIO=5 SIEGE_STUCK=1000 SIEGE_STEADY=$(STEADY) \
	  $(CARGO) test $(LOCKED) --test conformance-nightly $(ARGS) -- --nocapture --test-threads 1 siege::$(ATTACK)

INFORMERS ?=
SECRETS ?= 300

.PHONY: informers
informers: ## Kubernetes' own load test, directly and through a release build: no later? (INFORMERS="16 64" SECRETS=300)
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	KUBE_FANOUT_BINARY=$(CURDIR)/target/release/kube-fanout \
	  INFORMERS="$(or $(INFORMERS),16 64)" INFORMERS_SECRETS=$(SECRETS) INFORMERS_ROUNDS=$(or $(ROUNDS),3) \
	  INFORMERS_LIST_PERCENT=100 INFORMERS_WATCH_LIST_PERCENT=35 \
	  $(CARGO) test $(LOCKED) --test conformance-nightly $(ARGS) -- --nocapture large_secret_informers

.PHONY: strict-reads
strict-reads: ## LISTs without a version where few ask: little slower than directly? (ROUNDS=20; release build)
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	KUBE_FANOUT_BINARY=$(CURDIR)/target/release/kube-fanout STRICT_ROUNDS=$(or $(ROUNDS),20) STRICT_PERCENT=150 \
	  $(CARGO) test $(LOCKED) --test conformance-nightly $(ARGS) -- --nocapture strict_reads::

.PHONY: informers-of-events
informers-of-events: ## Informers of Events after a deletion and an expiry: no later than directly? (ROUNDS=20; release build)
	@tests/kube/build.sh
	$(CARGO) build --release $(LOCKED)
	KUBE_FANOUT_BINARY=$(CURDIR)/target/release/kube-fanout EVENT_ROUNDS=$(or $(ROUNDS),20) EVENT_PERCENT=150 \
	  $(CARGO) test $(LOCKED) --test conformance-nightly $(ARGS) -- --nocapture informers_of_events::

.PHONY: h2spec
h2spec: ## h2spec, strictly, against the HTTP/2 server: plain and behind TLS (Go; seconds once built)
	@tests/kube/build.sh tests/h2spec target/testbed/h2spec
	$(CARGO) test $(LOCKED) --test direct $(ARGS) -- --nocapture http2::h2spec

.PHONY: testbed
testbed: ## Build target/testbed/kube-testbed: etcd, kube-apiserver, kubectl, client-go (minutes when cold)
	@tests/kube/build.sh

.PHONY: demo
demo: ## See it work: embedded upstream, proxy, watches (ARGS="--watches 2000 --seconds 20")
	$(CARGO) run --release $(LOCKED) --package fanoutctl -- demo $(ARGS)

# Pages, links, pictures: site/build.py. Nothing but Python, and its packages once from where pip finds them.
.PHONY: site
site: target/venv-site/ready ## The documentation as a site in target/site/html: searchable, offline, links checked (python3; a minute when cold)
	@target/venv-site/bin/python site/build.py

target/venv-site/ready: site/requirements.txt
	python3 -m venv target/venv-site
	target/venv-site/bin/pip install --quiet --disable-pip-version-check --requirement site/requirements.txt
	@touch $@

# It needs Node and Chromium, and nothing that is built: behind the page are made-up answers (tests/page).
.PHONY: page
page: ## The live page in headless Chromium: texts, keyboard, colours, narrow, 5,000 watches (Node, Chromium; seconds)
	@node tests/page/check.js

.PHONY: bench
bench: ## Criterion benchmarks (ARGS="--bench wire -- transcode")
	$(CARGO) bench $(LOCKED) $(ARGS)

.PHONY: figures
figures: ## Scenarios of the bench: apiserver, proxy, the limit (ARGS="gentle stuck" ROUNDS=3; all take two hours)
	@benches/beside.sh $(ARGS)

BASE ?=

.PHONY: bench-check
bench-check: ## Is a benchmark slower than at BASE=<commit>? Both in one run (five minutes once built)
	@BASE="$(BASE)" CARGO="$(CARGO)" benches/check.sh

.PHONY: bench-baseline
bench-baseline: ## Measure benches/baseline.json again
	@CARGO="$(CARGO)" benches/check.sh baseline

.PHONY: doc
doc: ## The documentation of all crates, private items included
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(LOCKED) --workspace --no-deps --document-private-items

.PHONY: binary
binary: ## target/release/kube-fanout and fanoutctl, for this machine
	$(CARGO) build --release $(LOCKED)
	@ls -l target/release/kube-fanout target/release/fanoutctl

HELM := target/tools/bin/helm

# What writes bills of materials, from crates.io as `make tools` does it.
RELEASE_TOOLS := cargo-cyclonedx@0.5.9
# What writes .deb and .rpm.
NFPM := github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.1
release-tools release: export PATH := $(CURDIR)/target/tools/bin:$(PATH)

.PHONY: release-tools
release-tools: ## Install cargo-cyclonedx and nfpm into target/tools, for `make release` (minutes)
	@$(call install-tools,$(RELEASE_TOOLS))
	@test -x target/tools/bin/nfpm || GOBIN=$(CURDIR)/target/tools/bin CGO_ENABLED=0 tests/kube/go.sh install $(NFPM)

# deploy/release.sh says what can be chosen.
.PHONY: release
release: release-tools ## target/dist: archives, packages, image, chart, provenance, sums (KEY=minisign.key; half an hour when cold)
	@deploy/release.sh

# A registry, and what installs plugins of kubectl.
REGISTRY := github.com/distribution/distribution/v3/cmd/registry@v3.0.0
KREW := sigs.k8s.io/krew/cmd/krew@v0.4.2

.PHONY: release-check
release-check: export PATH := $(CURDIR)/target/tools/bin:$(PATH)
release-check: release $(HELM) ## Each file of the release installed, upgraded and removed; the same when written again (python3, skopeo, minisign)
	@for tool in $(REGISTRY) $(KREW); do \
	  test -x "target/tools/bin/$$(basename "$${tool%@*}")" || GOBIN=$(CURDIR)/target/tools/bin CGO_ENABLED=0 tests/kube/go.sh install "$$tool"; \
	done
	@python3 tests/release.py

# deploy/image.sh says what can be chosen.
.PHONY: image
image: ## An OCI layout in target/image: one static binary from scratch, not root (minutes when cold)
	@deploy/image.sh

.PHONY: image-check
image-check: image ## Does the image start, with nothing but itself as root? (python3; root, or the tree as it is)
	@python3 tests/image.py

# The manifests of deploy/kustomize come of deploy/chart. Not part of `make check`, for Helm takes minutes to build.
.PHONY: manifests
manifests: $(HELM) ## Render deploy/chart into deploy/kustomize, and config/ into both (Helm, built once: minutes)
	HELM=$(CURDIR)/$(HELM) deploy/manifests.sh

.PHONY: manifests-check
manifests-check: $(HELM) ## Are the manifests of deploy/kustomize those of the chart?
	$(HELM) lint --strict deploy/chart
	HELM=$(CURDIR)/$(HELM) deploy/manifests.sh check

.PHONY: chart
chart: $(HELM) ## The guide's `helm install` on a real control plane, and its proxy run (Helm, built once: minutes)
	@tests/kube/build.sh
	HELM=$(CURDIR)/$(HELM) \
	  $(CARGO) test $(LOCKED) --test direct --test conformance $(ARGS) -- --nocapture helm_chart

$(HELM):
	GOBIN=$(CURDIR)/target/tools/bin CGO_ENABLED=0 tests/kube/go.sh install helm.sh/helm/v4/cmd/helm@v4.3.1

PROMTOOL := target/tools/bin/promtool

.PHONY: alerts
alerts: $(PROMTOOL) ## Does each alert fire when it should, and not before? (promtool, built once: minutes)
	$(PROMTOOL) check rules --lint-fatal deploy/monitoring/rules.yaml
	cd deploy/monitoring && $(CURDIR)/$(PROMTOOL) test rules rules_test.yaml

$(PROMTOOL):
	GOBIN=$(CURDIR)/target/tools/bin CGO_ENABLED=0 tests/kube/go.sh install \
	  github.com/prometheus/prometheus/cmd/promtool@v0.316.0

COUNT ?= 100

.PHONY: transcoder
transcoder: ## Random objects of every kind and minor: JSON as Go prints it, or refused? (COUNT=100 SEED=n; network)
	@tests/facts/generate.sh check $(COUNT) $(SEED)

.PHONY: facts
facts: ## Make the table of the API's types again, from the published Go modules of every minor (network)
	@tests/facts/generate.sh
	@tests/facts/generate.sh corpus
