// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	osexec "os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	lab "github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/hack/lab/fabric"
	"github.com/kiln-net/kiln/hack/lab/topology"
	"github.com/kiln-net/kiln/internal/testing/prepared"
)

// Numbers of the autonomous systems: of the cluster, of FRR on the lab's router, and of BIRD on the outside host.
const clusterASN, frrASN, birdASN = 64512, 64513, 64514

// bgpPassword is the password of the sessions between nodes and BIRD over IPv4.
const bgpPassword = "e2e-first"

// bgpDaemon is a BGP program of Debian in the network of a machine. `go run ./hack/lab router-root` makes its root file system.
type bgpDaemon struct{ pid string }

// startDaemon starts a shell script that runs a daemon with the configuration /run/bgp.conf.
func startDaemon(machine, script, config string) *bgpDaemon {
	GinkgoHelper()
	root, err := prepared.File("router")
	Expect(err).NotTo(HaveOccurred(), "make bgp-lab makes it")
	mounts := fmt.Sprintf("mount --make-rprivate / && mount -t proc proc %[1]s/proc && mount -t tmpfs run %[1]s/run && mount --bind /dev %[1]s/dev && "+
		"cat >%[1]s/run/bgp.conf && exec chroot %[1]s sh -c '%[2]s'", root, script)
	// The daemons are those of Debian: interoperability is what the specs are about.
	cmd := osexec.Command("nsenter", "--net="+fabric.NetnsPath(machine), "--", "sh", "-c", mounts)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(config), GinkgoWriter, GinkgoWriter
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	Expect(cmd.Start()).To(Succeed())
	DeferCleanup(func() { // the other daemons end with the first process of their namespace
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &bgpDaemon{strconv.Itoa(cmd.Process.Pid)}
}

// run runs a program of the daemon's root file system.
func (d *bgpDaemon) run(ctx context.Context, args ...string) (string, error) {
	enter := []string{"--target", d.pid, "--mount", "--net", "--pid", "--root", "--wd", "--"}
	out, err := osexec.CommandContext(ctx, "nsenter", append(enter, args...)...).CombinedOutput() // vtysh and birdc are the daemons' interfaces
	if err != nil {
		return "", fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return string(out), nil
}

// frr is FRR on the lab's router, whose routes are those of the router's kernel.
type frr struct {
	*bgpDaemon
	table *netlink.Handle
}

// startFRR starts FRR with one session of each family with each worker.
func startFRR(ctx context.Context) *frr {
	GinkgoHelper()
	var config strings.Builder
	fmt.Fprintf(&config, "router bgp %d\n bgp router-id %s\n no bgp ebgp-requires-policy\n no bgp default ipv4-unicast\n bgp bestpath as-path multipath-relax\n",
		frrASN, topology.Management.Router()[0].Addr())
	for _, a := range workerAddresses() {
		family := "ipv4"
		if a.Is6() {
			family = "ipv6"
		}
		fmt.Fprintf(&config, " neighbor %[1]s remote-as %[2]d\n neighbor %[1]s timers 3 9\n neighbor %[1]s timers connect 1\n neighbor %[1]s passive\n"+
			" address-family %[3]s unicast\n  neighbor %[1]s activate\n  maximum-paths 8\n exit-address-family\n", a, clusterASN, family)
	}
	// The kernel chooses among next hops by addresses only, unless it hashes ports as well.
	exec(ctx, lab.Router, "sh", "-c", "for f in ipv4 ipv6; do echo 1 >/proc/sys/net/$f/fib_multipath_hash_policy; done")
	d := startDaemon(lab.Router, "mkdir -p /run/frr /var/tmp/frr && chown frr:frr /run/frr /var/tmp/frr && /usr/lib/frr/zebra -d -P 0 && "+
		"/usr/lib/frr/bfdd -d -P 0 && exec /usr/lib/frr/bgpd -P 0 -f /run/bgp.conf --log stdout", config.String())
	return &frr{bgpDaemon: d, table: handleIn(lab.Router)}
}

// handleIn returns netlink in the network of a machine or of the bridges.
func handleIn(machine string) *netlink.Handle {
	GinkgoHelper()
	ns, err := netns.GetFromPath(fabric.NetnsPath(machine))
	Expect(err).NotTo(HaveOccurred())
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(h.Close)
	return h
}

// workerAddresses returns all addresses of the workers.
func workerAddresses() (all []netip.Addr) {
	for _, n := range suite.Lab.Nodes() {
		if !n.ControlPlane {
			all = append(all, n.Addresses()...)
		}
	}
	return all
}

// vtysh runs commands of FRR.
func (f *frr) vtysh(ctx context.Context, commands ...string) (string, error) {
	args := []string{"vtysh"}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	return f.run(ctx, args...)
}

// session is FRR's state of a session.
type session struct {
	State string `json:"state"`
	Drops int    `json:"connectionsDropped"`
}

// sessions returns the sessions by the node's address.
func (f *frr) sessions(ctx context.Context) (map[string]session, error) {
	all := map[string]session{}
	for _, family := range []string{"ipv4", "ipv6"} {
		out, err := f.vtysh(ctx, "show bgp "+family+" unicast summary json")
		if err != nil {
			return nil, err
		}
		var summary struct {
			Peers map[string]session `json:"peers"`
		}
		if err := json.Unmarshal([]byte(out), &summary); err != nil {
			return nil, fmt.Errorf("decode %q: %w", out, err)
		}
		for address, s := range summary.Peers {
			all[address] = s
		}
	}
	return all, nil
}

// established waits until every session of FRR is established, and returns how often each has ended.
func (f *frr) established(ctx context.Context) map[string]int {
	GinkgoHelper()
	drops := map[string]int{}
	Eventually(func(g Gomega) {
		all, err := f.sessions(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).To(HaveLen(len(workerAddresses())))
		for address, s := range all {
			g.Expect(s.State).To(Equal("Established"), address)
			drops[address] = s.Drops
		}
	}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(200 * time.Millisecond).Should(Succeed())
	return drops
}

// setBFD switches BFD of all sessions on or off.
func (f *frr) setBFD(ctx context.Context, on bool) {
	GinkgoHelper()
	commands := []string{"configure terminal", fmt.Sprintf("router bgp %d", frrASN)}
	for _, a := range workerAddresses() {
		line := fmt.Sprintf("neighbor %s bfd", a)
		if !on {
			line = "no " + line
		}
		commands = append(commands, line)
	}
	_, err := f.vtysh(ctx, commands...)
	Expect(err).NotTo(HaveOccurred())
}

// bfdPeer is FRR's state of a BFD session.
type bfdPeer struct {
	Peer   string `json:"peer"`
	Status string `json:"status"`
	Downs  int    `json:"session-down"`
}

func (f *frr) bfd(ctx context.Context, what string) (all []bfdPeer, err error) {
	out, err := f.vtysh(ctx, "show bfd peers "+what+"json")
	if err != nil {
		return nil, err
	}
	return all, json.Unmarshal([]byte(out), &all)
}

// bfdUp waits until BFD is up with every worker.
func (f *frr) bfdUp(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		all, err := f.bfd(ctx, "")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).To(HaveLen(len(workerAddresses())))
		g.Expect(all).To(HaveEach(HaveField("Status", "up")))
	}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(100 * time.Millisecond).Should(Succeed())
}

// hops returns the next hops of a prefix in the kernel of the router.
func (f *frr) hops(p netip.Prefix) []string {
	family := netlink.FAMILY_V6
	if p.Addr().Is4() {
		family = netlink.FAMILY_V4
	}
	to := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	list, err := f.table.RouteListFiltered(family, &netlink.Route{Dst: to}, netlink.RT_FILTER_DST)
	if err != nil {
		return []string{err.Error()}
	}
	hops := []string{}
	for i := range list {
		if list[i].Gw != nil {
			hops = append(hops, list[i].Gw.String())
		}
		for _, n := range list[i].MultiPath {
			hops = append(hops, n.Gw.String())
		}
	}
	slices.Sort(hops)
	return hops
}

// reaches waits until the router has a prefix by exactly these workers.
func (f *frr) reaches(ctx context.Context, p netip.Prefix, workers ...int) {
	GinkgoHelper()
	Eventually(f.hops).WithArguments(p).WithContext(ctx).WithTimeout(30*time.Second).WithPolling(20*time.Millisecond).
		Should(Equal(hopsOf(p, workers...)), p.String())
}

// hopsOf returns the addresses of workers in the family of a prefix.
func hopsOf(p netip.Prefix, workers ...int) []string {
	hops := []string{}
	for _, w := range workers {
		for _, n := range suite.Lab.Nodes() {
			for _, a := range n.Addresses() {
				if n.Name == suite.Workers[w] && a.Is4() == p.Addr().Is4() {
					hops = append(hops, a.String())
				}
			}
		}
	}
	slices.Sort(hops)
	return hops
}

// startBIRD starts BIRD on the outside host, which has another router in between. It connects by IPv4 to the workers, with a password, as a router of another
// autonomous system. Over IPv6 the workers connect to it by iBGP.
func startBIRD(password string) *bgpDaemon {
	GinkgoHelper()
	return startDaemon(lab.OutsideHost, "mkdir -p /run/bird && exec bird -f -c /run/bgp.conf", birdConfig(password))
}

func birdConfig(password string) string {
	outside := suite.Lab.OutsideAddresses()
	var config strings.Builder
	fmt.Fprintf(&config, "router id %s;\nprotocol device {}\nprotocol static { ipv4; route 0.0.0.0/0 via %s; }\nprotocol static { ipv6; route ::/0 via %s; }\n",
		outside[0], topology.Outside.Router()[0].Addr(), topology.Outside.Router()[1].Addr())
	for _, a := range workerAddresses() {
		session := fmt.Sprintf("local %s as %d; multihop 3; authentication md5; password \"%s\"; connect delay time 1", outside[0], birdASN, password)
		if a.Is6() {
			session = fmt.Sprintf("local %s as %d; passive", outside[1], clusterASN)
		}
		fmt.Fprintf(&config, "protocol bgp { neighbor %s as %d; %s; hold time 9; connect retry time 1; error wait time 1, 5;\n"+
			" ipv4 { import all; export none; }; ipv6 { import all; export none; }; }\n", a, clusterASN, session)
	}
	return config.String()
}

// birdHops returns the protocols, which are sessions, from which BIRD has a prefix, as addresses of nodes.
func (d *bgpDaemon) birdHops(ctx context.Context, p netip.Prefix) ([]string, error) {
	out, err := d.run(ctx, "birdc", "-r", "show", "route", p.String(), "all")
	if err != nil && !strings.Contains(err.Error(), "Network not found") {
		return nil, err
	}
	hops := []string{}
	for line := range strings.Lines(out) {
		if _, hop, found := strings.Cut(line, "bgp_next_hop:"); found {
			hops = append(hops, strings.Fields(hop)[0])
		}
	}
	slices.Sort(hops)
	return slices.Compact(hops), nil
}

// establishedSessions returns the number of established sessions of BIRD.
func (d *bgpDaemon) establishedSessions(ctx context.Context) (int, error) {
	out, err := d.run(ctx, "birdc", "-r", "show", "protocols")
	return strings.Count(out, "Established"), err
}
