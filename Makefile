# Everything that this repository does, on a Debian machine with Rust. `make help` lists it.

SHELL := /bin/bash
CARGO ?= cargo
TARGET ?= $(or $(CARGO_TARGET_DIR),target)/debug
MODE ?= ipvs
CASES ?= integration/golden/cases/$(MODE)
# Every program: with another choice of packages cargo would build what they depend on once more, as other features of it are asked for.
# BUILD=--all-targets takes the programs as the tests have them, which saves two minutes behind `make test`.
programs = $(CARGO) build --locked --workspace $(or $(BUILD),--bins)
# The daemon as it is shipped, by itself: without what tests ask for of its dependencies.
shipped = $(CARGO) build --locked --profile shipped -p kube-proxy
# What measures, and the daemon beside it.
release = $(CARGO) build --locked --release $(1) && $(shipped) && cp $(patsubst %/debug,%/shipped,$(TARGET))/kube-proxy $(patsubst %/debug,%/release,$(TARGET))/

.PHONY: help demo tour test check test-full test-kernels properties fuzz faults golden soak cluster e2e migrate bench lint build image man reproducible deps doctor advisories

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: deps ## Show real Services carried by real IPVS, with an account of who answered (LANE=B WITHOUT_IPTABLES=1: by a guest without its programs and ipset's)
	$(programs)
	$(if $(LANE),LAB_LANE=$(LANE) $(if $(filter B,$(LANE)),LAB_KERNEL="$$(integration/kernel/build)")) \
		$(TARGET)/demo --kube-proxy $(TARGET)/kube-proxy --examples manifests/examples $(if $(WITHOUT_IPTABLES),--without-iptables)

tour: ## Print docs/tour.md: a Service of each type, as the subcommands of kube-proxy show it in the demo's lab
	@integration/deps >&2
	@$(programs)
	@$(TARGET)/demo --kube-proxy $(TARGET)/kube-proxy --examples manifests/examples --tour

test: deps ## Run everything: lints, unit tests, the lab with a real IPVS kernel (LANE=B: on one with nftables, which it builds)
	integration/test

test-full: test ## What a release runs: make test, all of it on lane B, and a selection on a newer kernel
	@LANE=B integration/deps
	LANE=B integration/test
	LANE=A KERNEL=6.12 integration/test selected

test-kernels: ## Tests on several Linux, a row for each in docs/kernels.md: KERNELS="6.12 6.1 7.x 6.12-packaged" STEPS="netlink proxier golden scenarios"
	@LANE=B integration/deps
	STEPS="$(STEPS)" integration/kernel/test-all $(KERNELS)

properties: ## Histories of events, faults, foreign changes and restarts, on the fakes of all modes: HISTORIES= SEED= MODE= (or FORM=); LANE=A|B|host: on that kernel
	$(CARGO) build --locked -q --profile histories -p properties
	$(if $(LANE),$(CARGO) build --locked -q -p lab)
	$(if $(LANE),LAB_LANE=$(LANE) $(if $(filter B,$(LANE)),LAB_KERNEL="$$(integration/kernel/build)") $(TARGET)/lab run --timeout 86400 --) \
		$(patsubst %/debug,%/histories,$(TARGET))/properties $(if $(LANE),--kernel) $(if $(HISTORIES),--histories $(HISTORIES)) \
		$(if $(SEED),--seed $(SEED)) $(if $(filter command line environment,$(origin MODE)),--mode $(MODE)) $(if $(FORM),--form $(FORM))

fuzz: ## Feed every parser with what libFuzzer makes up, guided by coverage: SECONDS=60 for each, TARGET=NAME
	@fuzz/run $(if $(filter command line,$(origin SECONDS)),$(SECONDS),60) $(if $(filter command line,$(origin TARGET)),$(TARGET))

faults: deps ## Every fault with real traffic, on both lanes, and docs/faults.md of it: FAULT= MODE= LANE= RELEASE=1 BEFORE=(a commit, or an older kube-proxy)
	$(if $(RELEASE),$(call release,-p lab -p faults),$(programs))
	$(if $(LANE),LAB_LANE=$(LANE) $(if $(filter B,$(LANE)),LAB_KERNEL="$$(integration/kernel/build)")) \
		$(if $(RELEASE),$(patsubst %/debug,%/release,$(TARGET)),$(TARGET))/faults $(if $(LANE),,--kernel "$$(integration/kernel/build)") $(if $(FAULT),--fault "$(FAULT)") \
		$(if $(filter command line environment,$(origin MODE)),--mode "$(MODE)") \
		$(if $(BEFORE),--before "$$(integration/faults/before $(BEFORE))") --rows $(TARGET)/faults-rows --document docs/faults.md

golden: deps ## Compare what is left in the kernel with upstream's dumps: CASES=DIR MODE=ipvs|iptables|nftables
	$(programs)
	$(TARGET)/golden --kube-proxy $(TARGET)/kube-proxy --mode $(MODE) --cases "$(CASES)"

soak: deps ## Hours of churn with traffic in the lab, and whether anything grows: HOURS=2 RELEASE=1 MODE=ipvs|iptables|nftables OUT=target/soak (docs/soak.md)
	$(if $(RELEASE),$(call release,-p lab -p soak),$(programs))
	$(if $(LANE),LAB_LANE=$(LANE) $(if $(filter B,$(LANE)),LAB_KERNEL="$$(integration/kernel/build)")) $(if $(RELEASE),$(patsubst %/debug,%/release,$(TARGET)),$(TARGET))/soak --mode $(MODE) \
		--minutes "$$(awk 'BEGIN { print 60 * $(or $(HOURS),2) }')" --out "$(or $(OUT),$(TARGET)/../soak)"

# An image of the debug binary unless IMAGE names an archive: seconds, not minutes.
cluster_image = $(or $(IMAGE),$(TARGET)/image/kube-proxy-ipvs-v$(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1).tar)
cluster_run = $(if $(LANE),LAB_LANE=$(LANE) $(if $(filter B,$(LANE)),LAB_KERNEL="$$(integration/kernel/build)")) $(TARGET)/cluster $(if $(KUBERNETES),--kubernetes "$(KUBERNETES)") \
	--image "$(cluster_image)" --mode $(MODE) $(if $(NODES),--nodes $(NODES)) $(if $(MEMORY),--memory $(MEMORY)) $(if $(MINUTES),--minutes $(MINUTES)) --out "$(or $(OUT),$(TARGET)/../cluster)"

.PHONY: cluster-parts
cluster-parts:
	@$(programs) -q
	@$(if $(KUBERNETES),integration/deps && integration/deps cluster)
	@$(if $(KUBERNETES),$(if $(IMAGE),,image/build $(TARGET)/kube-proxy $(TARGET)/image >/dev/null))

cluster: cluster-parts ## A Kubernetes cluster in one guest, of programs that you bring: KUBERNETES=DIR MODE= NODES= RUN="kubectl get pods -A" IMAGE= (docs/cluster.md)
	@$(cluster_run) up $(if $(RUN),--run '$(RUN)')

e2e: cluster-parts ## The network suite of Kubernetes' e2e.test on it: KUBERNETES=DIR MODE= FOCUS= SKIP= MINUTES=
	@$(cluster_run) e2e $(if $(FOCUS),--focus '$(FOCUS)') $(if $(SKIP),--skip '$(SKIP)')

migrate: cluster-parts ## Swap two images under load on it, there and back: KUBERNETES=DIR MODE= FROM=ARCHIVE FROM_MODE= (without FROM: upstream's kube-proxy of DIR)
	@$(cluster_run) migrate $(if $(FROM),--from "$(FROM)") $(if $(FROM_MODE),--from-mode $(FROM_MODE))

bench: deps ## Measure, beside a bare loader and other kube-proxies: SIZES= AXES= REPEATS= SUBJECTS= MINUTES= FULL=1 KUBE_PROXY="NAME=PATH:MODE ..."
	$(call release,-p bench -p apiserver)
	$(patsubst %/debug,%/release,$(TARGET))/bench run $(if $(SIZES),--sizes $(SIZES)) $(if $(AXES),--axes $(AXES)) \
		$(if $(REPEATS),--repeats $(REPEATS)) $(if $(SUBJECTS),--subjects $(SUBJECTS)) $(if $(FULL),--full) $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(LANE),--lane $(LANE)) $(foreach other,$(KUBE_PROXY),--kube-proxy $(other))

check: ## Lint and unit tests, for each edit: what needs no kernel
	integration/test check

lint: ## Formatting, clippy, licences and sources of dependencies
	integration/test lint

build: ## The program as it is shipped, in target/shipped
	$(shipped)

man: ## Write the man pages of kube-proxy and its subcommands to target/man
	$(CARGO) run --locked -q -p kube-proxy --example man -- target/man

image: ## The container image, as an OCI archive, and its SBOM (says what it installs; FLAVOUR=nftables: of one static binary)
	@image/build

reproducible: ## Build the release twice, in two folders, and compare the programs byte by byte (two release builds: minutes each)
	@integration/reproducible

deps: ## Install what the lab needs from Debian's packages (says what; LANE=B: and what builds its kernel)
	@integration/deps

doctor: ## Say which kernel the lab would use, and what is missing
	$(CARGO) run -q --locked -p lab -- doctor
	@integration/kernel/build --check

advisories: ## Check dependencies against the RustSec database (needs to reach it)
	$(CARGO) deny check advisories || { echo "make advisories: failed; if the database could not be fetched, nothing was checked" >&2; exit 1; }
