# Kiln: all commands of the project. `make` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Cache of the artifacts that the lab and the tests need; each is built once.
KILN_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kiln
export KILN_CACHE
export KUBEBUILDER_ASSETS := $(KILN_CACHE)/bin

# One set of build flags for the image, the lab and the tests, so that a cold machine compiles everything once (hack/lab/prepare/programs.go). Without make,
# go has no such flags: debuggers need what -dwarf=false leaves out.
COMPILER_FLAGS := -trimpath -tags=grpcnotrace -gcflags=all=-dwarf=false
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(filter-out $(COMPILER_FLAGS),$(GOFLAGS)) $(COMPILER_FLAGS))

# What compiles much runs with these variables, which save a quarter of the CPU time (hack/host/compiler-memory).
COMPILER_MEMORY = env $$(sh hack/host/compiler-memory)

IMAGE ?= kiln.local/kiln:dev
IMAGE_ARCHIVE := _output/kiln.tar
# Platforms of the image in a registry or an OCI layout.
ALL_PLATFORMS := linux/amd64,linux/arm64
CONTROL_PLANES ?= 1
WORKERS ?= 2
FAMILIES ?= dual

# Pinned tools. Each is built from its module into a directory with the version in its name.
# renovate: datasource=go depName=sigs.k8s.io/controller-tools
CONTROLLER_GEN_VERSION := v0.23.0
# renovate: datasource=go depName=github.com/golangci/golangci-lint/v2
GOLANGCI_LINT_VERSION := v2.15.0
# renovate: datasource=go depName=github.com/rhysd/actionlint
ACTIONLINT_VERSION := v1.7.12
# renovate: datasource=go depName=golang.org/x/vuln
GOVULNCHECK_VERSION := v1.9.0
CONTROLLER_GEN := $(KILN_CACHE)/tools/controller-gen-$(CONTROLLER_GEN_VERSION)/controller-gen
GOLANGCI_LINT := $(KILN_CACHE)/tools/golangci-lint-$(GOLANGCI_LINT_VERSION)/golangci-lint
ACTIONLINT := $(KILN_CACHE)/tools/actionlint-$(ACTIONLINT_VERSION)/actionlint
GOVULNCHECK := $(KILN_CACHE)/tools/govulncheck-$(GOVULNCHECK_VERSION)/govulncheck

# DATAPATH=kernel runs a lab's nodes with the kernel's Open vSwitch datapath. KERNEL says which kernel: uml, built for it and run in User
# Mode Linux, or host.
DATAPATH ?= userspace
KERNEL ?= uml

LAB := go run ./hack/lab
PREPARE = $(COMPILER_MEMORY) go run ./hack/prepare
LAB_UP = $(LAB) up --control-planes $(CONTROL_PLANES) --workers $(WORKERS) $(if $(filter kernel,$(DATAPATH)),--kernel $(KERNEL))

# Programs that use the lab are built here and run where the lab is: on this host or in the lab's kernel, which has no network.
IN_LAB = $(LAB) run

# The suites with labs of their own (hack/lab/suite).
include hack/lab/suite/suites.mk

# The PATH of the tests and the demo. `make prepare` fills it with go, make, and the programs of the packages that it installs and
# of those that every Debian has. Other installed programs are not found, so they cannot hide a gap in the list
# (hack/lab/prepare/host.go).
HOST_PATH := $(KILN_CACHE)/path

# $(call stage,target) runs make for a target with that PATH and prints the duration.
stage = @start=$$SECONDS; echo "=== $(1)"; env PATH=$(HOST_PATH) $(MAKE) --no-print-directory $(1) || { echo "=== $(1) FAILED after $$((SECONDS - start)) s"; exit 1; }; \
	echo "=== $(1) passed in $$((SECONDS - start)) s"

##@ The two commands

.PHONY: demo
demo: check-host ## The main job on this machine: cluster, operator, OVNCluster, and checks between real pods
	$(PREPARE) --lab
	$(call stage,demo-run)

.PHONY: demo-run
demo-run: images
	$(COMPILER_MEMORY) go build -o _output/demo ./hack/demo
	$(LAB_UP)
	$(LAB) load $(IMAGE_ARCHIVE)
	$(IN_LAB) _output/demo --families $(FAMILIES)

.PHONY: test
test: prepare $(GOLANGCI_LINT) $(ACTIONLINT) $(CONTROLLER_GEN) ## The gate: generated files, lint, unit and envtest suites, and smoke specs in the lab; all stages run, failures come last (STAGES="lint test-unit" for some)
	go build -o _output/gate/run ./hack/gate
	env PATH=$(HOST_PATH) _output/gate/run $(STAGES)

##@ Parts of them

# The first output of `make demo`, `make test` and `make prepare`: one sentence if this machine cannot run them. It needs no Go.
.PHONY: check-host
check-host:
	@sh hack/host/check-host
	@test -e $(KILN_CACHE)/containerd || echo "This machine can run the lab. The first compilation, of hack/prepare, takes half a minute; then every step is printed."

.PHONY: prepare
prepare: check-host ## Install system packages, build Kubernetes, unpack OVN (once; root; Debian 12 or 13)
	$(PREPARE)

.PHONY: demo-down
demo-down: ## Take the cluster of `make demo` down; leaves nothing but the cache
	$(LAB) down

.PHONY: test-unit
test-unit: ## Unit, engine and envtest suites without long tests (needs `make prepare`; test-long, test-operator-long and test-tools run the others)
	mkdir -p _output && rm -f $(WAITS)
	KILN_GATE=1 KILN_WAIT_LIMIT=$(TEST_WAIT_LIMIT) KILN_WAITS=$(WAITS) $(GO_TEST) -timeout 20m $(UNIT)
	@test ! -s $(WAITS) || { echo "Waits that took long; make test-long fails because of them ($(WAITS)):"; cat $(WAITS); }

# Number of packages that are tested at the same time, and of parallel tests in each. Most of them wait for timers, so two packages leave two cores idle.
TEST_PACKAGES ?= 4

# Half of the suites' CPU time is that of API servers, and a fifth of it was garbage collection of small heaps. Compilers, tests and the programs that
# they start inherit it.
TEST_GOGC ?= 400

# The time after which a wait fails in the gate. Nearly all waits take less than a second; those for timers have more (internal/testing/eventually).
TEST_WAIT_LIMIT ?= 45s

# The waits of test-unit that took longer than the speed of the machine explains.
WAITS := $(CURDIR)/_output/waits.jsonl

# `make lint` runs vet. Without the debug information, linking a test takes a fifth less CPU time; stack traces do not need it.
GO_TEST = GOGC=$(TEST_GOGC) go test -vet=off -ldflags=-w -p $(TEST_PACKAGES) -parallel $(TEST_PACKAGES)

# The packages with the longest suites come first, so that no long suite runs alone at the end.
SLOWEST := ./controllers/operator ./cmd/kiln ./supervisor/ovs ./internal/node/bridges ./controllers/pod ./agent/host ./agent/services ./internal/northbound ./controllers/subnet ./supervisor/northd ./supervisor/ovsdb ./agent/speaker/bgp ./controllers/egress ./internal/kubectlko ./controllers/policy ./agent ./agent/cniserver ./agent/probes ./agent/pinger ./internal/node/bridges/journal

# Directories of hack whose tests test-tools runs: images, packages, the lab. Product code does not use them.
TOOLS := conformance image lab packaging release

UNIT = $(SLOWEST) ./api/... ./agent/... ./cmd/... ./cni/... ./controllers/... $(patsubst %/,./%/...,$(filter-out $(TOOLS:%=hack/%/),$(wildcard hack/*/))) \
	./internal/... ./supervisor/... ./test/bench/... ./test/oracle/... ./test/soak/...

.PHONY: test-tools
test-tools: ## Tests of the image, the packages, the lab and other tools (needs `make prepare`)
	$(GO_TEST) -count=1 -timeout 20m $(TOOLS:%=./hack/%/...)

.PHONY: test-operator-long
test-operator-long: ## The operator's tests that the gate leaves out: upgrades, issuers, removals, stolen tokens (needs `make prepare`)
	GOGC=$(TEST_GOGC) go run ./hack/long test-operator-long -timeout 30m

.PHONY: test-long
test-long: ## The unit suites on an idle machine: slow waits fail, costs at full size, timers, the large soak (needs `make prepare`)
	GOGC=$(TEST_GOGC) KILN_TEST_FULL=1 $(SOAK) go run ./hack/long test-long -p 1 -timeout 60m
	KILN_GATE=1 KILN_TEST_FULL=1 $(GO_TEST) -count=1 -timeout 30m $(UNIT)

.PHONY: fresh
fresh: ## `make test` (RUN=… another command) in a clone of HEAD on a minimal Debian with nothing prepared (DEBIAN=trixie; GO_CACHES=1 shares Go's caches)
	$(LAB) fresh --suite $(or $(DEBIAN),bookworm) $(if $(GO_CACHES),--go-caches) '$(or $(RUN),make test)'

# Duration of each fuzz target.
FUZZTIME ?= 1m

.PHONY: fuzz
fuzz: ## Each fuzz target for a minute (FUZZTIME=10m); an input that fails is written to testdata/fuzz: commit it with the fix
	@for file in $$(grep -rl '^func Fuzz' --include='*_test.go' agent api cmd cni controllers hack internal); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9]*\)(.*/\1/p' $$file); do \
			echo "$$target in $$(dirname $$file)"; \
			go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x ./$$(dirname $$file) || exit 1; \
		done; \
	done

# MUTANTS: flags of hack/mutants, such as `-package internal/address/ipam -jobs 2`.
MUTANTS ?=

.PHONY: mutants
mutants: ## Run the tests with each defect of hack/mutants in turn; fail if no test detects one (needs `make prepare`; MUTANTS='-package internal/address/ipam' for some)
	go run ./hack/mutants $(MUTANTS)

# RACE_PACKAGES: the packages of `make test-race`. The race detector needs cgo: prepare --race installs a C compiler.
RACE_PACKAGES ?= ./internal/... ./supervisor/... ./controllers/... ./agent/... ./cmd/...

.PHONY: underlay-kills
underlay-kills: ## End `kiln ovs` before each step of a move of the node's only interface to a bridge, and of its return (needs `make prepare`)
	KILN_UNDERLAY_KILLS=all go test -count=1 -timeout=30m -v -run='^TestANodeIsReachedWhereverTheProcessEnds$$' ./internal/node/bridges

.PHONY: underlay-kernel
underlay-kernel: ## The same, and other faults of moves, with the kernel's datapath (needs a lab that is up with DATAPATH=kernel)
	go test -c -o _output/bridges.test ./internal/node/bridges
	$(IN_LAB) env KILN_TEST_DATAPATH=kernel KILN_UNDERLAY_KILLS=all _output/bridges.test -test.v -test.timeout 90m \
		-test.run='^Test(ANodeIsReached|ARestorationHolds|AStoppedProcess|AMoveThatCuts|AnInterfaceMoves|RefusalsName|ConnectionsSurvive|VLANInterfacesStay|ABondMoves|AMissingVLAN|ARemovalOfKiln|AnAddressThatTheNetwork)'
	$(IN_LAB) _output/bridges.test -test.v -test.run='^Test(VLANInterfacesStay|ABondMoves|AMissingVLAN)' # in userspace, where the host has no VLANs or bonds

.PHONY: test-race
test-race: ## The unit, engine and envtest suites with the race detector, in random order (RACE_PACKAGES=./internal/northbound/... for some)
	$(LAB) prepare --race
	CGO_ENABLED=1 go test -race -shuffle=on -count=1 -p 1 -timeout 60m $(RACE_PACKAGES)

# The size of the large soak.
SOAK = SOAK_VPCS=$(or $(SOAK_VPCS),20) SOAK_SUBNETS=$(or $(SOAK_SUBNETS),300) SOAK_PODS=$(or $(SOAK_PODS),2000) \
	SOAK_NODES=$(or $(SOAK_NODES),10) SOAK_KILLS=$(or $(SOAK_KILLS),8)

.PHONY: soak
soak: ## VPCs, subnets and pods come and go in random order while the controller is killed (needs `make prepare`; KILN_SEED=… repeats a run)
	$(SOAK) go test -timeout 60m -count=1 -v ./test/soak

.PHONY: bgp
bgp: ## The BGP sessions of kube-ovn-speaker with FRR and BIRD of Debian 13, with times of withdrawals (needs `make prepare`)
	$(LAB) router-root
	KILN_BGP_DAEMONS=1 CGO_ENABLED=0 go test -count=1 -v -run 'FRR|BIRD|FiveThousand' ./agent/speaker/bgp

# The packages whose event sources test-watches removes, with `=` and the package of their tests if it is another one.
# WATCHES_FLAGS: flags of hack/watches.
WATCHES ?= controllers/egress controllers/egressaddress controllers/ippool controllers/lbrule controllers/namespace controllers/node=controllers/subnet controllers/ovneip controllers/ovnnat controllers/pod controllers/policy controllers/routergateway controllers/service controllers/subnet controllers/trafficmirror controllers/transit controllers/vip controllers/vpc agent/host
WATCHES_FLAGS ?=

.PHONY: test-watches
test-watches: ## Take each event source of the controllers away in turn and say which test sees it; hours (needs `make prepare`; WATCHES=controllers/vpc for some)
	go run ./hack/watches $(WATCHES_FLAGS) $(WATCHES)

.PHONY: record
record: ## Make a target and write its result to evidence/, for the files of the product that are committed: make record TARGET=test-e2e (several: TARGET='underlay faults')
	@test -n "$(TARGET)" || { echo "name the target: make record TARGET=test-e2e"; exit 1; }
	go run ./hack/evidence record $(TARGET)

.PHONY: evidence
evidence: ## Print the records of the suites that a release needs; fails if one is missing or of another product (TARGETS='underlay faults' for some)
	@go run ./hack/evidence check $(TARGETS)

.PHONY: lint
lint: actionlint specs golangci-lint language ## All of these checks (`make -k lint` runs the others after a failure)

.PHONY: golangci-lint
golangci-lint: $(GOLANGCI_LINT) ## Style, size of functions and files, import rules, vet
	$(GOLANGCI_LINT) run ./...

.PHONY: language
language: ## The language of comments, messages and docs
	go run ./hack/language

.PHONY: specs
specs: ## The table of suites, the labels of specs, and specs that no suite runs
	go test ./hack/lab/suite ./hack/suites
	go test -count=1 -skip '^TestE2E$$' ./test/e2e

.PHONY: actionlint
actionlint: $(ACTIONLINT) ## Check the workflows
	$(ACTIONLINT) .github/workflows/*.yaml

.PHONY: govulncheck
govulncheck: $(GOVULNCHECK) ## Known vulnerabilities of the Go modules that the programs use (needs internet access)
	$(GOVULNCHECK) ./...

.PHONY: fmt
fmt: $(GOLANGCI_LINT) ## Format the code
	$(GOLANGCI_LINT) fmt ./...

.PHONY: vet
vet: ## go vet
	go vet ./...

##@ Build

.PHONY: build
build: ## Build kiln and the CNI plugin into bin/
	go build -o bin/ ./cmd/...

.PHONY: images
images: ## Build the image archive _output/kiln.tar: Debian 13's OVN and OVS, and our binaries (PLATFORMS=linux/amd64,linux/arm64 writes _output/kiln.oci.tar)
	$(COMPILER_MEMORY) $(if $(PLATFORMS),go run ./hack/image layout --platforms $(PLATFORMS) --output _output/kiln.oci.tar --tag $(IMAGE),go run ./hack/image --output $(IMAGE_ARCHIVE) --tag $(IMAGE))

.PHONY: push
push: ## Build the image for amd64 and arm64 and push it: make push IMAGE=registry.example/kiln:v1 (PLATFORMS=… some; OCI=dist/kiln-….oci.tar pushes a release; INSECURE=1 plain HTTP)
	go run ./hack/image push --platforms $(or $(PLATFORMS),$(ALL_PLATFORMS)) --tag $(IMAGE) $(if $(OCI),--from '$(OCI)') $(if $(INSECURE),--insecure)

# kubebuilder's names. No Docker is needed.
.PHONY: docker-build docker-push
docker-build: images
docker-push: push

.PHONY: image-lock
image-lock: ## Write the lock files of the image's Debian packages with the versions that the mirror has now
	go run ./hack/image lock

.PHONY: test-image
test-image: ## Build the image twice for both platforms and compare; run the arm64 programs with qemu-user (installs it)
	$(LAB) prepare --image
	go test -count=1 -timeout 30m -v ./test/image

# REPOSITORY: the name of a release's image without the tag.
REPOSITORY ?= kiln.local/kiln

.PHONY: release
release: ## Write a release to dist/: make release VERSION=v1.2.3 REPOSITORY=registry.example/kiln (REPLACES=v1.2.2 for its bundle; EVIDENCE=none for an unproven one; docs/development/releases.md)
	@test "$(origin VERSION)" = "command line" || { echo "name the version: make release VERSION=v1.2.3"; exit 1; }
	@test -z "$$(git status --porcelain)" || { echo "a release is built from a commit: commit the changes first"; git status --short; exit 1; }
	rm -rf dist _output/release && mkdir -p dist _output/release
	go run ./hack/evidence release $(if $(filter none,$(EVIDENCE)),--without)
	$(MAKE) --no-print-directory build-installer IMAGE=$(REPOSITORY):$(VERSION)
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) go run ./hack/image layout --platforms $(ALL_PLATFORMS) --tag $(REPOSITORY):$(VERSION) --revision $$(git rev-parse HEAD) \
		--output _output/release/kiln.oci.tar >_output/release/reference
	$(MAKE) --no-print-directory bundle IMAGE=$$(cat _output/release/reference) CREATED=$$(TZ=UTC git log -1 --format=%cd --date=format-local:%FT%TZ) BUNDLE=_output/release/bundle
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) go run ./hack/release --version '$(VERSION)' --parts _output/release --dist dist

.PHONY: build-installer
build-installer: ## Write dist/install.yaml: definitions, roles, admission policies and the operator (IMAGE=… sets its image)
	$(PACKAGING) render --image $(IMAGE) --output dist/install.yaml config/default

# NEXT_VERSION is the version in bundle/. VERSION: the semantic version of another bundle. REPLACES: the earlier version that it is an upgrade of.
# BUNDLE: its directory.
NEXT_VERSION := v0.1.0
REPLACES ?=
BUNDLE ?= bundle

.PHONY: bundle
bundle: ## Write the bundle for the Operator Lifecycle Manager (VERSION=v0.2.0 REPLACES=v0.1.0 IMAGE=…@sha256:… BUNDLE=dist/bundle for a release)
	$(PACKAGING) bundle --version $(or $(VERSION),$(NEXT_VERSION)) --image $(IMAGE) $(if $(REPLACES),--replaces $(REPLACES)) $(if $(CREATED),--created $(CREATED)) --output $(BUNDLE)

# BUNDLES: directories of bundles and their images, in the order of the versions.
BUNDLES ?=

.PHONY: catalog
catalog: ## Write dist/catalog, a file-based catalog of bundles (BUNDLES='DIRECTORY=IMAGE DIRECTORY=IMAGE')
	$(PACKAGING) catalog $(BUNDLES)

##@ A cluster of yours

# KUSTOMIZATION: what deploy and undeploy apply and delete, such as config/overlays/ha. An overlay includes the OVNCluster.
KUSTOMIZATION ?= config/default
KUBECTL ?= kubectl
PACKAGING := go run ./hack/packaging

.PHONY: install
install: ## Apply the resource definitions to the cluster of your kubeconfig
	$(PACKAGING) render config/crd | $(KUBECTL) apply --server-side -f -

.PHONY: deploy
deploy: ## Apply the operator, its roles and the definitions (IMAGE=… sets its image, KUSTOMIZATION=config/overlays/ha adds the OVNCluster)
	$(PACKAGING) render --image $(IMAGE) $(KUSTOMIZATION) | $(KUBECTL) apply --server-side -f -

.PHONY: undeploy
undeploy: no-ovncluster ## Delete what deploy applied, with all network resources
	$(PACKAGING) render $(KUSTOMIZATION) | $(KUBECTL) delete --ignore-not-found -f -

.PHONY: uninstall
uninstall: no-ovncluster ## Delete the resource definitions, with all network resources
	$(PACKAGING) render config/crd | $(KUBECTL) delete --ignore-not-found -f -

# Without the operator nothing cleans the nodes, and the OVNCluster could not be deleted.
.PHONY: no-ovncluster
no-ovncluster:
	@! $(KUBECTL) get ovncluster default >/dev/null 2>&1 || { echo "the OVNCluster exists: delete it first, so that the operator cleans the nodes (docs/operations/install.md, Remove)"; exit 1; }

##@ Generated code

.PHONY: generate
generate: $(CONTROLLER_GEN) ## Deep copies of the API types, the models of the OVSDB schemas, targets of the table of suites
	$(CONTROLLER_GEN) object:headerFile=hack/boilerplate.go.txt paths=./api/...
	go generate ./internal/ovsdb
	go run ./hack/suites

.PHONY: manifests
manifests: $(CONTROLLER_GEN) ## CRDs from the API types, the list of samples, and the bundle from them
	$(CONTROLLER_GEN) crd:allowDangerousTypes=true paths=./api/... output:crd:dir=config/crd/bases
	$(PACKAGING) samples config/samples
	$(PACKAGING) bundle --version $(NEXT_VERSION) --image kiln.local/kiln:dev --output bundle

GENERATED := api bundle config internal/ovsdb hack/lab/suite/suites.mk .github/workflows

.PHONY: verify
verify: generate manifests ## Fail when generated files are not what is committed
	@test -z "$$(git status --porcelain -- $(GENERATED))" || \
		{ echo "generated files differ from what is committed: run 'make generate manifests' and commit"; git --no-pager diff --stat -- $(GENERATED); exit 1; }

$(CONTROLLER_GEN):
	GOFLAGS= GOBIN=$(@D) go install sigs.k8s.io/controller-tools/cmd/controller-gen@$(CONTROLLER_GEN_VERSION)

$(GOLANGCI_LINT):
	@echo "building golangci-lint $(GOLANGCI_LINT_VERSION) (once, a few minutes)"
	GOFLAGS= GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

$(ACTIONLINT):
	GOFLAGS= GOBIN=$(@D) go install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION)

$(GOVULNCHECK):
	GOFLAGS= GOBIN=$(@D) go install golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION)

##@ Benchmarks

# BENCH: serial, burst, flat, restart, takeover, delete, nodes, subnets; services, policy, enforced (with NORTHD=on); or Go benchmarks of a
# package: ipam, northbound, cni, sandbox; or metrics: series and scrapes of the agent and the supervisors at 10,000 pods.
# N: pods of the bursts; each burst adds to the previous ones (N=1000,5000). NORTHD: on, paused or both.
BENCH ?= serial,burst,restart,delete
N ?= 1000
NORTHD ?= on paused
# LAYOUT: one runs everything on one CPU; split runs servers on one, controller and driver on another. The default is split with two
# or more CPUs.
LAYOUT ?=
# More flags of the bench: BENCH_FLAGS='-restarts 9 -profiles /tmp'.
BENCH_FLAGS ?=

# Go benchmarks, pinned to one CPU.
BENCH_PACKAGE := $(if $(filter ipam,$(BENCH)),./internal/address/ipam,$(if $(filter northbound,$(BENCH)),./internal/northbound,$(if $(filter cni,$(BENCH)),./agent/cniserver,$(if $(filter sandbox,$(BENCH)),./agent/sandbox))))
BENCH_ARGS = -bench floor,$(BENCH) -n $(N) $(if $(LAYOUT),-layout $(LAYOUT)) $(BENCH_FLAGS)
# Flags for the runs of OLD only: OLD_FLAGS=-admission-policies=false, OLD_FLAGS=-port-security=Requested.
OLD_FLAGS ?=

.PHONY: bench
bench: $(if $(filter metrics,$(BENCH)),bench-metrics,$(if $(BENCH_PACKAGE),bench-package,bench-system)) ## Measure against the floors of this machine (needs `make prepare`; docs/development/performance.md): make bench BENCH=burst N=5000

.PHONY: bench-system
bench-system:
	go build -o bin/bench ./test/bench
	for northd in $(NORTHD); do bin/bench $(BENCH_ARGS) -northd $$northd -json bin/bench-$$northd.json; done

.PHONY: bench-package
bench-package:
	go test -c -o bin/$(BENCH).test $(BENCH_PACKAGE)
	cd $(BENCH_PACKAGE) && taskset -c $$(($$(nproc --all) - 1)) $(CURDIR)/bin/$(BENCH).test -test.run '^$$' -test.bench . -test.benchmem $(if $(filter cni sandbox,$(BENCH)),-test.benchtime 200x) $(BENCH_FLAGS)

.PHONY: bench-metrics
bench-metrics:
	mkdir -p bin && rm -f bin/scrapes.txt
	KILN_SCRAPES=$(CURDIR)/bin/scrapes.txt go test -count=1 -timeout 30m -run TestSeriesDoNotGrowWithPods ./agent ./supervisor/ovs
	sort bin/scrapes.txt

.PHONY: bench-compare
bench-compare: ## Measure two git revisions in alternation: make bench-compare OLD=main NEW=HEAD
	go build -o bin/bench ./test/bench
	bin/bench -northd paused $(BENCH_ARGS) -old $(OLD) -new $(NEW) $(if $(OLD_FLAGS),-old-flags '$(OLD_FLAGS)') -json bin/bench-compare.json

##@ Help

.PHONY: help
help: ## Print this
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@/ {printf "\n\033[1m%s\033[0m\n", substr($$0, 5)} \
		/^[a-zA-Z0-9_-]+:.*## / {printf "  \033[36m%-19s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)
