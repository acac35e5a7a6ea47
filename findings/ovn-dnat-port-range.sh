#!/bin/bash
# OVN: external_port_range of a dnat row selects nothing. Every packet to the external address is translated, of any protocol and port, and
# gets the port of the range as its new port.
#
# A reader of `ovn-nbctl --portrange lr-nat-add r dnat 192.0.2.100 10.0.0.11 8080` may expect a port forward. ovn-nb(5) calls the column a range for
# the source port of snat. A load balancer with the external address as its VIP forwards one port.
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

ovn-nbctl lr-add r -- set logical_router r options:chassis=c \
	-- lrp-add r r-out 00:00:00:00:00:01 192.0.2.1/24 -- lrp-add r r-in 00:00:00:00:00:02 10.0.0.1/24 \
	-- ls-add out -- lsp-add out out-r -- lsp-set-type out-r router -- lsp-set-options out-r router-port=r-out -- lsp-set-addresses out-r router \
	-- lsp-add out host -- lsp-set-addresses host '00:00:00:00:00:09 192.0.2.9' \
	-- ls-add in -- lsp-add in in-r -- lsp-set-type in-r router -- lsp-set-options in-r router-port=r-in -- lsp-set-addresses in-r router \
	-- lsp-add in pod -- lsp-set-addresses pod '00:00:00:00:00:0b 10.0.0.11'
ovn-nbctl --portrange lr-nat-add r dnat 192.0.2.100 10.0.0.11 8080
ovn-nbctl --wait=sb sync
flow=$(ovn-sbctl dump-flows r | grep lr_in_dnat | grep 'ct_dnat(' | grep -o 'match=.*')
echo "the only flow: $flow"
for packet in 'tcp && tcp.dst == 22' 'udp && udp.dst == 53' 'icmp4'; do
	out=$(ovn-trace --minimal out "inport == \"host\" && eth.src == 00:00:00:00:00:09 && eth.dst == 00:00:00:00:00:01 && ip.ttl == 64 && \
		ip4.src == 192.0.2.9 && ip4.dst == 192.0.2.100 && $packet" --ct new --ct new)
	echo "$packet: $(grep -o 'ct_dnat(.*)\|output("pod")' <<<"$out" | tr '\n' ' ')"
	grep -q 'output("pod")' <<<"$out"
done
[ "$flow" = 'match=(ip && ip4.dst == 192.0.2.100), action=(flags.loopback = 1; ct_dnat(10.0.0.11,8080);)' ]
