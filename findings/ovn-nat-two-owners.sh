#!/bin/bash
# OVN: ovn-nbctl accepts dnat_and_snat for an external address that a dnat row already has: two flows with equal priority and match, and only one of
# them is used.
#
# The command refuses a second row of the same type, which looks like a check of the address. It compares rows of one type only, and ovn-northd logs
# no warning. A controller must keep the owner of an external address itself.
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

ovn-nbctl lr-add r -- set logical_router r options:chassis=c -- lrp-add r r-out 00:00:00:00:00:01 192.0.2.1/24 -- lrp-add r r-in 00:00:00:00:00:02 10.0.0.1/24
ovn-nbctl lr-nat-add r dnat 192.0.2.100 10.0.0.11
same=accepted
ovn-nbctl lr-nat-add r dnat 192.0.2.100 10.0.0.12 2>/dev/null || same=refused
other=accepted
ovn-nbctl lr-nat-add r dnat_and_snat 192.0.2.100 10.0.0.13 2>/dev/null || other=refused
ovn-nbctl --wait=sb sync
flows=$(ovn-sbctl dump-flows r | grep lr_in_dnat | grep 'ip4.dst == 192.0.2.100')
warnings=$(grep -c 'WARN' "$t/northd.log" || true)
echo "a second dnat: $same; a dnat_and_snat: $other; warnings of ovn-northd: $warnings"
echo "$flows"
[ "$same" = refused ] && [ "$other" = accepted ] && [ "$warnings" = 0 ]
[ "$(grep -c 'priority=100 ' <<<"$flows")" = 2 ] && [ "$(grep -o 'match=([^)]*)' <<<"$flows" | sort -u | wc -l)" = 1 ]
