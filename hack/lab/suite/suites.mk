# Written by `make generate` from the table in hack/lab/suite: do not edit.

##@ Suites in new labs (KEEP=1 leaves the lab up; variables: go run ./hack/lab suite)

SUITES := test-smoke stress-smoke test-e2e test-timing underlay mirrors outside underlay-default test-changes test-upgrade migrate faults crashes qos attacks monitoring alerts bgp-lab conformance bench-datapath underlay-single-nic test-modes test-install test-kernel test-cluster test-hard
.PHONY: $(SUITES)

test-smoke: images ## The e2e specs of the gate in a new lab, as a part of `make test` (needs `make prepare`)
stress-smoke: images ## The e2e specs of the gate ten times next to four busy processes and one that writes to the disk, in a new lab: a spec of the gate passes each time (SPECS=… some)
test-e2e: images ## The e2e suite without timed specs in a new lab (needs `make prepare`); the answers to mistakes of users go to _output/mistakes.md
test-timing: images ## The timed specs three times in a new lab on an idle machine, with verdicts by the median; values are added to _output/timing.csv
underlay: images ## Subnets on a physical network, in a new lab
mirrors: images ## Copies of packets at mirror0 and at remote collectors, in a new lab (DATAPATH=kernel)
outside: images ## External addresses on the routers of VPCs, on VLANs of a new lab, with FRR as BFD peer (DATAPATH=kernel)
underlay-default: images ## The subnet ovn-default on a VLAN, in a new lab
test-changes: images ## Change podCIDRs, dataDirectory, toolingDirectory and tunnelType of an installed cluster under traffic, in a new lab
test-upgrade: images ## Install the version of FROM, upgrade it under traffic, and go back to its image, in a new lab
migrate: images ## Remove Kiln from a new lab, leave remains of Kube-OVN, and follow docs/operations/migrate.md
faults: images ## Every fault of docs/operations/reliability.md, one after another, in a new lab with three nodes of the control plane; the table goes to _output/faults.md
crashes: images ## Kill the daemons of a node's Open vSwitch in a new lab, and count lost packets (DATAPATH=kernel; CRASHES=… rounds); the table goes to _output/crashes.md
qos: images ## Rates and delays of pods, measured in a new lab (DATAPATH=kernel); the table goes to _output/qos.md
attacks: images ## A hostile tenant with the role edit and 5,000 pods, in a new lab
monitoring: images ## Debian's Prometheus scrapes every component of a new lab: metrics, alerts and dashboards; the tables and pages go to _output
alerts: images ## Each alert that a fault of the lab can cause fires and resolves, with shorter durations, in a new lab; the table goes to _output/alerts.md (ALERT=… for some)
bgp-lab: images ## kube-ovn-speaker with FRR and BIRD in a new lab: routes, traffic from outside, times of withdrawals; the table goes to _output/bgp.md (BGP_RUNS=…)
conformance: prepare images ## Kubernetes' own [sig-network] conformance tests in a new lab (docs/development/conformance.md; ALL=1 all of [sig-network], FOCUS=… SKIP=… others)
bench-datapath: images ## Throughput, round trips, connections and packets of the data plane in a new lab, with references (DATAPATH=kernel); the table goes to _output/datapath.md
underlay-single-nic: images ## A provider network on the only interface of nodes, and on the interface of the kubelet, in two new labs
test-modes: images ## The checks of the demo in other labs: IPv4 only, IPv6 only, and both with kube-proxy
test-install: images ## Install, check, upgrade under traffic and uninstall by install.yaml, two overlays, the bundle, and the documentation's commands, each in a new lab (WAYS=bundle for some)
test-kernel: prepare images ## The e2e suite on the kernel's Open vSwitch datapath, in groups (GROUP=services for some; KEEP=1 uses and leaves the lab that is up)
test-cluster: images ## The suites that change the cluster as a whole, one after another: physical networks, modes, changes, upgrade, migration, installations
test-hard: images ## The suites that take hours, one after another: faults, crashes, attacks, monitoring, alerts, BGP (BGP_RUNS=3 is shorter)

$(SUITES):
	$(LAB) suite $@
