# Commands of this repository, for a Debian machine with Rust. `make help` lists them.

SHELL := /bin/bash
CARGO ?= cargo
TARGET ?= $(or $(CARGO_TARGET_DIR),target)/debug
MODE ?= ipvs
CASES ?= integration/golden/cases/$(MODE)
# Builds all programs. With fewer packages, cargo would enable other features of the dependencies and build them again. After
# `make test`, BUILD=--all-targets saves two minutes, because it uses the programs that the tests built.
programs = $(CARGO) build --locked --workspace $(or $(BUILD),--bins)
# Builds the shipped daemon separately, without the features of dependencies that only tests need.
shipped = $(CARGO) build --locked --profile shipped -p kube-proxy
# Builds the measuring programs, with the shipped daemon next to them.
release = $(CARGO) build --locked --release $(1) && $(shipped) && cp $(patsubst %/debug,%/shipped,$(TARGET))/kube-proxy $(patsubst %/debug,%/release,$(TARGET))/

.PHONY: help demo tour test check test-full test-kernels properties fuzz faults golden upgrade recording soak cluster e2e migrate bench lint build test-arch release image man reproducible deps crates doctor advisories

help: ## List all targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: deps ## Show real Services in real IPVS, and count the replies by server (LANE=B WITHOUT_IPTABLES=1: without the iptables and ipset programs)
	$(programs)
	$(if $(LANE),LAB_LANE=$(LANE) $(if $(filter B,$(LANE)),LAB_KERNEL="$$(integration/kernel/build)")) \
		$(TARGET)/demo --kube-proxy $(TARGET)/kube-proxy --examples manifests/examples $(if $(WITHOUT_IPTABLES),--without-iptables)

tour: ## Print docs/tour.md: a Service of each type, in the output of kube-proxy's subcommands in the lab
	@integration/deps >&2
	@$(programs)
	@$(TARGET)/demo --kube-proxy $(TARGET)/kube-proxy --examples manifests/examples --tour

test: deps ## Run all lints, unit tests, and tests in the lab on a real kernel with IPVS (LANE=B: on a kernel with nftables, which it builds)
	integration/test

test-full: test ## Run the tests of a release: make test, the same on lane B, and a selection on Linux 6.1 of Debian 12
	@LANE=B integration/deps
	LANE=B integration/test
	LANE=A KERNEL=6.1 integration/test selected
	integration/upgrade
	integration/crates

test-kernels: ## Run tests on several Linux versions, and write a row for each in docs/kernels.md: KERNELS="6.12 6.1 7.x 6.12-packaged" STEPS="netlink proxier golden scenarios"
	@LANE=B integration/deps
	STEPS="$(STEPS)" integration/kernel/test-all $(KERNELS)

properties: ## Run random histories of events, faults, foreign changes and restarts, on the fakes of all modes: HISTORIES= SEED= MODE= (or FORM=); LANE=A|B|host: on that kernel
	$(CARGO) build --locked -q --profile histories -p properties
	$(if $(LANE),$(CARGO) build --locked -q -p lab)
	$(if $(LANE),LAB_LANE=$(LANE) $(if $(filter B,$(LANE)),LAB_KERNEL="$$(integration/kernel/build)") $(TARGET)/lab run --timeout 86400 --) \
		$(patsubst %/debug,%/histories,$(TARGET))/properties $(if $(LANE),--kernel) $(if $(HISTORIES),--histories $(HISTORIES)) \
		$(if $(SEED),--seed $(SEED)) $(if $(filter command line environment,$(origin MODE)),--mode $(MODE)) $(if $(FORM),--form $(FORM))

fuzz: ## Fuzz every parser with libFuzzer, guided by coverage: SECONDS=60 for each, TARGET=NAME
	@fuzz/run $(if $(filter command line,$(origin SECONDS)),$(SECONDS),60) $(if $(filter command line,$(origin TARGET)),$(TARGET))

faults: deps ## Run every fault under real traffic, on both lanes, and write docs/faults.md: FAULT= MODE= LANE= RELEASE=1 BEFORE=(a commit, or an older kube-proxy)
	$(if $(RELEASE),$(call release,-p lab -p faults),$(programs))
	$(if $(LANE),LAB_LANE=$(LANE) $(if $(filter B,$(LANE)),LAB_KERNEL="$$(integration/kernel/build)")) \
		$(if $(RELEASE),$(patsubst %/debug,%/release,$(TARGET)),$(TARGET))/faults $(if $(LANE),,--kernel "$$(integration/kernel/build)") $(if $(FAULT),--fault "$(FAULT)") \
		$(if $(filter command line environment,$(origin MODE)),--mode "$(MODE)") \
		$(if $(BEFORE),--before "$$(integration/faults/before $(BEFORE))") --rows $(TARGET)/faults-rows --document docs/faults.md

golden: deps ## Compare the kernel state that the daemon leaves with upstream's dumps: CASES=DIR MODE=ipvs|iptables|nftables
	$(programs)
	$(TARGET)/golden --kube-proxy $(TARGET)/kube-proxy --mode $(MODE) --cases "$(CASES)"

upgrade: deps ## Test the upgrade from an earlier version and the way back, under traffic: BEFORE=COMMIT or PATH (default: the recorded version)
	@LANE=B integration/deps
	$(programs)
	integration/upgrade $(BEFORE)

recording: deps ## Record the kernel state of an earlier version for `make test`: BEFORE=COMMIT (CONTRIBUTING.md)
	@LANE=B integration/deps
	$(programs)
	integration/golden/record $(BEFORE)

soak: deps ## Run hours of churn under traffic in the lab, and report growing figures: HOURS=2 RELEASE=1 MODE=ipvs|iptables|nftables OUT=target/soak (docs/soak.md)
	$(if $(RELEASE),$(call release,-p lab -p soak),$(programs))
	$(if $(LANE),LAB_LANE=$(LANE) $(if $(filter B,$(LANE)),LAB_KERNEL="$$(integration/kernel/build)")) $(if $(RELEASE),$(patsubst %/debug,%/release,$(TARGET)),$(TARGET))/soak --mode $(MODE) \
		--minutes "$$(awk 'BEGIN { print 60 * $(or $(HOURS),2) }')" --out "$(or $(OUT),$(TARGET)/../soak)"

# Unless IMAGE=ARCHIVE is set, the cluster uses an image of the debug binary, which takes seconds to build instead of minutes.
cluster_image = $(or $(IMAGE),$(TARGET)/image/kube-proxy-ipvs-v$(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1).tar)
cluster_run = $(if $(LANE),LAB_LANE=$(LANE) $(if $(filter B,$(LANE)),LAB_KERNEL="$$(integration/kernel/build)")) $(TARGET)/cluster $(if $(KUBERNETES),--kubernetes "$(KUBERNETES)") \
	--image "$(cluster_image)" --mode $(MODE) $(if $(NODES),--nodes $(NODES)) $(if $(MEMORY),--memory $(MEMORY)) $(if $(MINUTES),--minutes $(MINUTES)) --out "$(or $(OUT),$(TARGET)/../cluster)"

.PHONY: cluster-parts
cluster-parts:
	@$(programs) -q
	@$(if $(KUBERNETES),integration/deps && integration/deps cluster)
	@$(if $(KUBERNETES),$(if $(IMAGE),,image/build $(TARGET)/kube-proxy $(TARGET)/image >/dev/null))

cluster: cluster-parts ## Run a Kubernetes cluster in one VM, with programs that you provide: KUBERNETES=DIR MODE= NODES= RUN="kubectl get pods -A" IMAGE= (docs/cluster.md)
	@$(cluster_run) up $(if $(RUN),--run '$(RUN)')

e2e: cluster-parts ## Run the network suite of Kubernetes' e2e.test on that cluster: KUBERNETES=DIR MODE= FOCUS= SKIP= MINUTES=
	@$(cluster_run) e2e $(if $(FOCUS),--focus '$(FOCUS)') $(if $(SKIP),--skip '$(SKIP)')

migrate: cluster-parts ## Migrate that cluster from one image to another and back, under load: KUBERNETES=DIR MODE= FROM=ARCHIVE FROM_MODE= (without FROM: upstream's kube-proxy of DIR)
	@$(cluster_run) migrate $(if $(FROM),--from "$(FROM)") $(if $(FROM_MODE),--from-mode $(FROM_MODE))

bench: deps ## Measure the daemon, a bare loader and other kube-proxies: SIZES= AXES= REPEATS= SUBJECTS= MINUTES= FULL=1 KUBE_PROXY="NAME=PATH:MODE ..."
	$(call release,-p bench -p apiserver)
	$(patsubst %/debug,%/release,$(TARGET))/bench run $(if $(SIZES),--sizes $(SIZES)) $(if $(AXES),--axes $(AXES)) \
		$(if $(REPEATS),--repeats $(REPEATS)) $(if $(SUBJECTS),--subjects $(SUBJECTS)) $(if $(FULL),--full) $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(LANE),--lane $(LANE)) $(foreach other,$(KUBE_PROXY),--kube-proxy $(other))

check: ## Run lints and unit tests, for each edit (needs no kernel)
	integration/test check

lint: ## Check formatting, clippy, docs, and licences and sources of dependencies
	integration/test lint

build: ## Build the shipped program in target/shipped (ARCH=arm64: for that architecture, below target/cross)
	$(if $(ARCH),image/cross $(ARCH)) $(shipped)

test-arch: ## Run unit tests and tests of byte layouts for another architecture under QEMU's user mode: ARCH=arm64
	@integration/architecture $(or $(ARCH),arm64)

release: ## Make and check all files of a release: VERSION= KEY= OUT= (docs/release.md; builds each architecture twice)
	@image/release "$(VERSION)"

man: ## Write the man pages of kube-proxy and its subcommands to target/man
	$(CARGO) run --locked -q -p kube-proxy --example man -- target/man

image: ## Build the container image as an OCI archive, and its SBOM (prints what it installs; FLAVOUR=nftables: one static binary; ARCH=arm64)
	@image/build

.PHONY: deb
deb: ## Build the Debian package with the systemd unit, in target/deb
	@image/deb

.PHONY: chart
chart: ## Lint, render and package the Helm chart, in target/chart
	@integration/chart

reproducible: ## Build the release twice, in two directories, and compare the programs byte by byte (two release builds: minutes each)
	@integration/reproducible

crates: ## Check the crates for other programs, and build each package as its users would, without publishing
	integration/crates

deps: ## Install the Debian packages that the lab needs, and print their names (LANE=B: also those that build its kernel)
	@integration/deps

doctor: ## Report the kernel that the lab would use, and missing tools
	$(CARGO) run -q --locked -p lab -- doctor
	@integration/kernel/build --check

advisories: ## Check dependencies against the RustSec database (needs access to it)
	$(CARGO) deny check advisories || { echo "make advisories: failed; if the database could not be fetched, nothing was checked" >&2; exit 1; }
