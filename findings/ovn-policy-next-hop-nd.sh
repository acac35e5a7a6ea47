#!/bin/bash
# OVN: for the IPv6 next hop of a router policy, neighbour solicitations go to the multicast address of the packet's destination, where the next hop does not listen.
#
# ovn-nb(5) describes a policy with the action reroute as a way to another next hop, and with IPv4 the same policy works: ARP requests are broadcast. With IPv6 the
# solicitation names the next hop as its target, and it is sent to the solicited-node address (RFC 4291, 2.7.1) of the destination of the packet that waits. A physical
# router that has not solicited OVN itself never answers, and packets are lost without a message. A static route by the same next hop, for any prefix, adds a flow with
# the right address to the logical router, also for packets of the policy.
#
# Versions: ovn-central, ovn-common, ovn-host 23.03.1-1~deb12u2, Open vSwitch 3.1.0-2+deb12u1 (Debian 12, amd64). 25.03.0 of Debian 13 does the same. Needs root, unshare, iproute2, python3, apt-get, dpkg, and
# the C libraries of a Debian 12. It uses network namespaces of its own only.
set -euo pipefail
if [ -z "${T:-}" ]; then
	T=$(mktemp -d)
	cd "$T"
	apt-get -qq -o APT::Sandbox::User=root download ovn-central=23.03.1-1~deb12u2 ovn-common=23.03.1-1~deb12u2 ovn-host=23.03.1-1~deb12u2 \
		openvswitch-common=3.1.0-2+deb12u1 openvswitch-switch=3.1.0-2+deb12u1 libxdp1 libbpf1 libunbound8
	for p in *.deb; do dpkg -x "$p" root; done
	cd "$OLDPWD"
	exec env T="$T" unshare --net --mount -- bash "$0"
fi
t=$T
trap 'kill $(cat "$t"/*.pid 2>/dev/null) 2>/dev/null || true; rm -rf "$t"' EXIT
export LD_LIBRARY_PATH="$t/root/usr/lib/x86_64-linux-gnu" PATH="$t/root/usr/bin:$t/root/usr/sbin:$t/root/usr/lib/openvswitch-switch:$PATH"
export OVS_RUNDIR="$t" OVN_RUNDIR="$t" OVS_LOGDIR="$t" OVN_LOGDIR="$t" OVS_DBDIR="$t" OVN_NB_DB="unix:$t/nb.sock" OVN_SB_DB="unix:$t/sb.sock"
mount -t tmpfs none /run && mkdir /run/netns
ip link set lo up
daemon() { "$1" -vconsole:off --detach --no-chdir --pidfile="$t/$2.pid" --log-file="$t/$2.log" "${@:3}"; }
ovsdb-tool create "$t/conf.db" "$t/root/usr/share/openvswitch/vswitch.ovsschema"
daemon ovsdb-server conf --remote="punix:$t/db.sock" "$t/conf.db"
for db in nb sb; do
	ovsdb-tool create "$t/$db.db" "$t/root/usr/share/ovn/ovn-$db.ovsschema"
	daemon ovsdb-server "$db" --unixctl="$t/$db.ctl" --remote="punix:$t/$db.sock" "$t/$db.db"
done
ovs-vsctl --no-wait init
daemon ovs-vswitchd vswitchd --disable-system "unix:$t/db.sock"
ovs-vsctl set open_vswitch . external_ids:system-id=c external_ids:ovn-remote="$OVN_SB_DB" external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip=127.0.0.1 \
	external_ids:ovn-bridge-datapath-type=netdev external_ids:ovn-bridge-mappings=physical:br-physical -- add-br br-physical -- set bridge br-physical datapath_type=netdev
daemon ovn-northd northd --ovnnb-db="$OVN_NB_DB" --ovnsb-db="$OVN_SB_DB"
daemon ovn-controller controller "unix:$t/db.sock"
ovn-controller --version | head -1

host() { # a network namespace with an interface eth0, whose peer is a port of a bridge
	ip netns add "$1"
	ip link add name "$1" type veth peer name eth0 netns "$1"
	ip netns exec "$1" sh -c "ip link set eth0 address $3 up; ip -6 address add $4 dev eth0 nodad"
	ip link set dev "$1" up
	ovs-vsctl add-port "$2" "$1"
}
ovn-nbctl ls-add in -- lsp-add in a -- lsp-set-addresses a "02:00:00:00:00:0a 2001:db8:1::a" -- lsp-add in in-r -- lsp-set-type in-r router -- lsp-set-addresses in-r router \
	-- lsp-set-options in-r router-port=r-in -- ls-add out -- lsp-add out out-r -- lsp-set-type out-r router -- lsp-set-addresses out-r router -- lsp-set-options out-r router-port=r-out \
	-- lsp-add out physical -- lsp-set-type physical localnet -- lsp-set-addresses physical unknown -- lsp-set-options physical network_name=physical \
	-- lr-add r -- lrp-add r r-in 02:00:00:00:00:01 2001:db8:1::1/64 -- lrp-add r r-out 02:00:00:00:00:02 2001:db8:2::1/64 -- lrp-set-gateway-chassis r-out c \
	-- lr-route-add r ::/0 2001:db8:2::dd -- lr-policy-add r 100 "ip6.src == 2001:db8:1::a" reroute 2001:db8:2::fe
for _ in $(seq 100); do ovs-vsctl br-exists br-int && break || sleep 0.1; done
host a br-int 02:00:00:00:00:0a 2001:db8:1::a/64
ovs-vsctl set interface a external_ids:iface-id=a
host router br-physical 02:00:00:00:00:fe 2001:db8:2::ee/64
ip netns exec a ip -6 route add default via 2001:db8:1::1
ovn-nbctl --wait=hv sync
cat >"$t/solicitations.py" <<'PY'
import ipaddress, socket, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86dd))
s.bind(("eth0", 0)); s.settimeout(0.5)
end, seen = time.monotonic() + 6, set()
while time.monotonic() < end:
    try: frame = s.recv(2000)
    except TimeoutError: continue
    if frame[6:12] == b"\2\0\0\0\0\2" and frame[20] == 58 and frame[54] == 135: # of the router: ICMPv6, neighbour solicitation
        seen.add(f"{ipaddress.ip_address(frame[62:78])} at {ipaddress.ip_address(frame[38:54])}")
print(", ".join(sorted(seen)))
PY
# solicited prints the targets and the destinations of the solicitations on the physical network while a sends to 2001:db8:9::9.
solicited() {
	ip netns exec router python3 "$t/solicitations.py" &
	ip netns exec a python3 -c '
import socket, time
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
for i in range(20): s.sendto(b"\x80\0\0\0\0\1\0\1", ("2001:db8:9::9", 0)); time.sleep(0.2)' || true
	wait $!
}
policy=$(solicited)
echo "with the policy alone: $policy"
ovn-nbctl --wait=hv lr-route-add r 2001:db8:2::fe/128 2001:db8:2::fe r-out
route=$(solicited)
echo "with a route by the same next hop: $route"
[ "$policy" = "2001:db8:2::fe at ff02::1:ff00:9" ] && [ "$route" = "2001:db8:2::fe at ff02::1:ff00:fe" ]
