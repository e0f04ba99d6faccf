# Everything that this repository does, on a Debian machine with Rust. `make help` lists it.

SHELL := /bin/bash
CARGO ?= cargo
TARGET ?= $(or $(CARGO_TARGET_DIR),target)/debug
MODE ?= ipvs
CASES ?= integration/golden/cases/$(MODE)

.PHONY: help demo tour test properties faults golden bench lint build image deps doctor advisories

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: deps ## Show real Services carried by real IPVS, with an account of who answered (LANE=B WITHOUT_IPTABLES=1: by a guest without its programs and ipset's)
	$(CARGO) build --locked -p kube-proxy -p lab -p demo
	$(if $(LANE),LAB_LANE=$(LANE) $(if $(filter B,$(LANE)),LAB_KERNEL="$$(integration/kernel/build)")) \
		$(TARGET)/demo --kube-proxy $(TARGET)/kube-proxy --examples manifests/examples $(if $(WITHOUT_IPTABLES),--without-iptables)

tour: ## Print docs/tour.md: a Service of each type, as the subcommands of kube-proxy show it in the demo's lab
	@integration/deps >&2
	@$(CARGO) build --locked -p kube-proxy -p lab -p demo
	@$(TARGET)/demo --kube-proxy $(TARGET)/kube-proxy --examples manifests/examples --tour

test: deps ## Run everything: lints, unit tests, the lab with a real IPVS kernel (LANE=B: on one with nftables, which it builds)
	integration/test

properties: ## Histories of events, faults, foreign changes and restarts, on the fakes of all modes: HISTORIES= SEED= MODE= (or FORM=)
	$(CARGO) run --locked -q --profile histories -p properties -- $(if $(HISTORIES),--histories $(HISTORIES)) \
		$(if $(SEED),--seed $(SEED)) $(if $(filter command line environment,$(origin MODE)),--mode $(MODE)) $(if $(FORM),--form $(FORM))

faults: deps ## Every fault with real traffic, on both lanes, and docs/faults.md of it: FAULT= MODE= LANE= RELEASE=1 BEFORE=(a commit, or an older kube-proxy)
	$(CARGO) build --locked $(if $(RELEASE),--release) -p kube-proxy -p lab -p faults
	$(if $(LANE),LAB_LANE=$(LANE) $(if $(filter B,$(LANE)),LAB_KERNEL="$$(integration/kernel/build)")) \
		$(if $(RELEASE),$(patsubst %/debug,%/release,$(TARGET)),$(TARGET))/faults $(if $(LANE),,--kernel "$$(integration/kernel/build)") $(if $(FAULT),--fault "$(FAULT)") \
		$(if $(filter command line environment,$(origin MODE)),--mode "$(MODE)") \
		$(if $(BEFORE),--before "$$(integration/faults/before $(BEFORE))") --rows $(TARGET)/faults-rows --document docs/faults.md

golden: deps ## Compare what is left in the kernel with upstream's dumps: CASES=DIR MODE=ipvs|iptables|nftables
	$(CARGO) build --locked -p kube-proxy -p golden
	$(TARGET)/golden --kube-proxy $(TARGET)/kube-proxy --mode $(MODE) --cases "$(CASES)"

bench: deps ## Measure, beside a bare loader and other kube-proxies: SIZES= AXES= REPEATS= SUBJECTS= MINUTES= FULL=1 KUBE_PROXY="NAME=PATH:MODE ..."
	$(CARGO) build --locked --release -p bench -p kube-proxy -p apiserver
	$(patsubst %/debug,%/release,$(TARGET))/bench run $(if $(SIZES),--sizes $(SIZES)) $(if $(AXES),--axes $(AXES)) \
		$(if $(REPEATS),--repeats $(REPEATS)) $(if $(SUBJECTS),--subjects $(SUBJECTS)) $(if $(FULL),--full) $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(LANE),--lane $(LANE)) $(foreach other,$(KUBE_PROXY),--kube-proxy $(other))

lint: ## Formatting, clippy, licences and sources of dependencies
	integration/test lint

build: ## The release binary
	$(CARGO) build --locked --release -p kube-proxy

image: ## The container image, as an OCI archive, and its SBOM (says what it installs; FLAVOUR=nftables: of one static binary)
	@image/build

deps: ## Install what the lab needs from Debian's packages (says what; LANE=B: and what builds its kernel)
	@integration/deps

doctor: ## Say which kernel the lab would use, and what is missing
	$(CARGO) run -q --locked -p lab -- doctor
	@integration/kernel/build --check

advisories: ## Check dependencies against the RustSec database (needs to reach it)
	$(CARGO) deny check advisories || { echo "make advisories: failed; if the database could not be fetched, nothing was checked" >&2; exit 1; }
