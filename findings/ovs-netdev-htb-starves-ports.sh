#!/bin/bash
# Open vSwitch, userspace datapath: linux-htb on one interface takes the packets of all others.
#
# ovs-vswitchd.conf.db(5) describes QoS as a property of a Port, and linux-htb works on veth interfaces of a bridge with datapath_type=netdev. All interfaces
# without a PMD share one AF_PACKET socket for sending. The kernel charges packets that wait in a queueing discipline to the socket's send buffer
# (net.core.wmem_default, about 90 full frames), which is less than the queue of an interface (1,000). So while one interface has more traffic than its rate, sending
# fails for every interface: a neighbour without QoS loses most of its packets. A meter drops before the packet is sent,
# and disturbs nobody.
#
# Versions: openvswitch-common, openvswitch-switch 3.1.0-2+deb12u1 (Debian 12, amd64; Linux 6.18). 3.5.0 of Debian 13 does the same. Needs root, unshare,
# iproute2, python3, apt-get, dpkg, and the C libraries of a Debian 12. It uses network namespaces of its own only.
set -euo pipefail
if [ -z "${T:-}" ]; then
	T=$(mktemp -d)
	cd "$T"
	apt-get -qq -o APT::Sandbox::User=root download openvswitch-common=3.1.0-2+deb12u1 openvswitch-switch=3.1.0-2+deb12u1 libxdp1 libbpf1 libunbound8
	for p in *.deb; do dpkg -x "$p" root; done
	cd "$OLDPWD"
	exec env T="$T" unshare --net --mount -- bash "$0"
fi
t=$T
trap 'kill $(cat "$t"/*.pid 2>/dev/null) 2>/dev/null || true; rm -rf "$t"' EXIT
export LD_LIBRARY_PATH="$t/root/usr/lib/x86_64-linux-gnu" PATH="$t/root/usr/bin:$t/root/usr/sbin:$t/root/usr/lib/openvswitch-switch:$PATH" OVS_RUNDIR="$t" OVS_LOGDIR="$t" OVS_DBDIR="$t"
mount -t tmpfs none /run && mkdir /run/netns
ovsdb-tool create "$t/conf.db" "$t/root/usr/share/openvswitch/vswitch.ovsschema"
ovsdb-server --detach --no-chdir --pidfile="$t/db.pid" --log-file="$t/db.log" -vconsole:off --remote="punix:$t/db.sock" "$t/conf.db"
ovs-vsctl --no-wait init
ovs-vswitchd --detach --no-chdir --disable-system --pidfile="$t/vswitchd.pid" --log-file="$t/vswitchd.log" -vconsole:off "unix:$t/db.sock"
ovs-vswitchd --version | head -1

ovs-vsctl add-br br0 -- set bridge br0 datapath_type=netdev
for i in 1 2 3; do # 1 sends, 2 is limited, 3 is its neighbour
	ip netns add "n$i"
	ip link add "p$i" type veth peer name eth0 netns "n$i"
	ip link set "p$i" up
	ip netns exec "n$i" sh -c "ip address add 192.0.2.$i/24 dev eth0; ip link set eth0 up"
	ovs-vsctl add-port br0 "p$i"
done
cat >"$t/udp.py" <<'PY'
import socket, sys, time
mode, address, rate = sys.argv[1], sys.argv[2], float(sys.argv[3])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 11, 1) # SO_NO_CHECK: a veth leaves checksums to a device that there is not
size, began = 1300, time.monotonic()
count = 0
if mode == "send":
    while (now := time.monotonic() - began) < 6:
        while count * size * 8 < now * rate:
            s.sendto(bytes(size), (address, 9))
            count += 1
        time.sleep(0.002)
else:
    s.bind((address, 9)); s.settimeout(0.2)
    while time.monotonic() - began < 7:
        try: s.recv(2000); count += 1
        except TimeoutError: pass
print(count)
PY
# share prints which percentage of 5 Mbit/s arrives at the neighbour while 30 Mbit/s are sent to the other one.
share() {
	ip netns exec n3 python3 "$t/udp.py" receive 192.0.2.3 0 >"$t/received" &
	local receiver=$!
	sleep 0.5
	ip netns exec n1 python3 "$t/udp.py" send 192.0.2.2 30e6 >/dev/null &
	ip netns exec n1 python3 "$t/udp.py" send 192.0.2.3 5e6 >"$t/sent"
	wait "$receiver"
	echo $((100 * $(cat "$t/received") / $(cat "$t/sent")))
}
for i in 2 3; do ip netns exec n1 bash -c "echo >/dev/udp/192.0.2.$i/9"; done # neighbours are known
without=$(share)
echo "without QoS: the neighbour receives $without %"
ovs-vsctl set port p2 qos=@q -- --id=@q create qos type=linux-htb other-config:max-rate=1000000 >/dev/null
sleep 1
with=$(share)
echo "linux-htb with max-rate=1000000 at the other port: the neighbour receives $with %"
errors=$(grep -c "error sending Ethernet packet on p3: Resource temporarily unavailable" "$t/vswitchd.log" || true)
echo "log lines about packets that could not be sent to the neighbour: $errors or more (the log is limited)"
ovs-vsctl --all destroy qos -- clear port p2 qos
ovs-ofctl -O OpenFlow13 add-meter br0 'meter=1,kbps,burst,stats,band=type=drop,rate=1000,burst_size=500'
port=$(ovs-vsctl get interface p2 ofport)
ovs-ofctl -O OpenFlow13 add-flow br0 "priority=10,ip,nw_dst=192.0.2.2,actions=meter:1,output:$port"
metered=$(share)
echo "a meter of the same rate instead: the neighbour receives $metered %"
[ "$without" -ge 95 ] && [ "$with" -le 60 ] && [ "$metered" -ge 95 ]
