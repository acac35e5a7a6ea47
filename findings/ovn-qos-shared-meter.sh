#!/bin/bash
# OVN: two switches with an equal QoS row have one logical flow, and so one meter: their traffic shares the rate.
#
# ovn-nb(5) describes QoS as a table of each switch. With rows of equal priority, match, rate and burst, ovn-northd makes one row of Logical_Flow
# for a group of datapaths. A chassis allocates the meter by the text of the action, so that ports of both switches together get the rate once.
# A match that names the port (inport == ...) makes the rows differ.
#
# Versions: ovn-central and ovn-common 23.03.1-1~deb12u2, Open vSwitch 3.1.0-2+deb12u1 (Debian 12, amd64). Needs apt-get, dpkg, and the C libraries of
# a Debian 12; no root, no network namespace. The programs run in a temporary directory, with sockets of their own.
set -euo pipefail
t=$(mktemp -d)
trap 'kill $(cat "$t"/*.pid 2>/dev/null) 2>/dev/null || true; rm -rf "$t"' EXIT
(cd "$t" && apt-get -qq -o APT::Sandbox::User=root download ovn-central=23.03.1-1~deb12u2 ovn-common=23.03.1-1~deb12u2 \
	openvswitch-common=3.1.0-2+deb12u1 openvswitch-switch=3.1.0-2+deb12u1 libxdp1 libbpf1 libunbound8 && for p in *.deb; do dpkg -x "$p" root; done)
export LD_LIBRARY_PATH="$t/root/usr/lib/x86_64-linux-gnu" PATH="$t/root/usr/bin:$t/root/usr/sbin:$PATH"
export OVS_RUNDIR="$t" OVN_RUNDIR="$t" OVS_LOGDIR="$t" OVN_LOGDIR="$t" OVN_NB_DB="unix:$t/nb.sock" OVN_SB_DB="unix:$t/sb.sock"
for db in nb sb; do
	ovsdb-tool create "$t/$db.db" "$t/root/usr/share/ovn/ovn-$db.ovsschema"
	ovsdb-server --detach --no-chdir --pidfile="$t/$db.pid" --log-file="$t/$db.log" -vconsole:off --remote="punix:$t/$db.sock" "$t/$db.db"
done
ovn-northd --detach --no-chdir --pidfile="$t/northd.pid" --log-file="$t/northd.log" -vconsole:off --ovnnb-db="$OVN_NB_DB" --ovnsb-db="$OVN_SB_DB"
ovn-northd --version | head -1

ovn-nbctl ls-add red -- lsp-add red red-1 -- ls-add blue -- lsp-add blue blue-1
ovn-nbctl qos-add red from-lport 100 ip4 rate=5000 burst=2500
ovn-nbctl qos-add blue from-lport 100 ip4 rate=5000 burst=2500
ovn-nbctl --wait=sb sync
shared=$(ovn-sbctl --bare --columns=_uuid find logical_flow match=ip4 'actions="set_meter(5000, 2500); next;"' | grep -c .)
datapaths=$(ovn-sbctl --bare --columns=logical_dp_group find logical_flow match=ip4 'actions="set_meter(5000, 2500); next;"')
datapaths=$(ovn-sbctl --bare --columns=datapaths list logical_dp_group "$datapaths" | wc -w)
echo "equal rows: $shared logical flow for $datapaths switches"

ovn-nbctl qos-del red -- qos-del blue
ovn-nbctl qos-add red from-lport 100 'inport == "red-1"' rate=5000 burst=2500
ovn-nbctl qos-add blue from-lport 100 'inport == "blue-1"' rate=5000 burst=2500
ovn-nbctl --wait=sb sync
apart=$(ovn-sbctl --bare --columns=_uuid find logical_flow 'actions="set_meter(5000, 2500); next;"' | grep -c .)
echo "rows that name their port: $apart logical flows"
[ "$shared" = 1 ] && [ "$datapaths" = 2 ] && [ "$apart" = 2 ]
