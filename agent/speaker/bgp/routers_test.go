// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/prepared"
)

// Addresses of a link between the node and a router in a namespace of its own.
const (
	near4, far4 = "198.51.100.1", "198.51.100.2"
	near6, far6 = "2001:db8:1::1", "2001:db8:1::2"
)

// Ports of the bridge between the node and the router.
const nearPort, farPort = "near", "far"

// routerDaemon is a BGP program of Debian. config is the file /etc/kiln-bgp.conf of its root file system.
type routerDaemon struct{ script, config string }

// frrWith returns FRR with one session for each family, with further lines for each of them.
func frrWith(lines ...string) routerDaemon {
	config := "router bgp 65002\n bgp router-id " + far4 + "\n no bgp ebgp-requires-policy\n no bgp default ipv4-unicast\n bgp graceful-restart\n"
	for _, node := range []string{near4, near6} {
		config += fmt.Sprintf(" neighbor %[1]s remote-as 65001\n neighbor %[1]s timers 3 9\n neighbor %[1]s timers connect 1\n neighbor %[1]s passive\n", node)
		for _, line := range lines {
			config += fmt.Sprintf(" neighbor %s %s\n", node, line)
		}
		for _, f := range []string{"ipv4", "ipv6"} {
			config += fmt.Sprintf(" address-family %s unicast\n  neighbor %s activate\n exit-address-family\n", f, node)
		}
	}
	return routerDaemon{ // FRR 10 has mgmtd, without which zebra reports errors all the time
		`mkdir -p /run/frr /var/tmp/frr && chown frr:frr /run/frr /var/tmp/frr &&
{ [ ! -x /usr/lib/frr/mgmtd ] || /usr/lib/frr/mgmtd -d -P 0; } && /usr/lib/frr/zebra -d -P 0 && /usr/lib/frr/bfdd -d -P 0 &&
exec /usr/lib/frr/bgpd -P 0 -f /etc/kiln-bgp.conf --log stdout`, config,
	}
}

// frrRange is frrWith for nodes that the configuration does not list.
func frrRange(lines ...string) routerDaemon {
	d := frrWith()
	d.config = "router bgp 65002\n bgp router-id " + far4 + "\n no bgp ebgp-requires-policy\n no bgp default ipv4-unicast\n neighbor nodes peer-group\n" +
		" neighbor nodes remote-as 65001\n neighbor nodes timers 3 9\n bgp listen range 198.51.100.0/24 peer-group nodes\n bgp listen range 2001:db8:1::/64 peer-group nodes\n"
	for _, line := range lines {
		d.config += " neighbor nodes " + line + "\n"
	}
	for _, f := range []string{"ipv4", "ipv6"} {
		d.config += fmt.Sprintf(" address-family %s unicast\n  neighbor nodes activate\n exit-address-family\n", f)
	}
	return d
}

// endsAt returns how often each session of the node has ended.
func (r *peerRouter) endsAt(s *Server) string {
	r.Helper()
	state, err := s.State(r.Context())
	must.Succeed(r.T, err)
	var ends []string
	for _, p := range state.Peers {
		ends = append(ends, strconv.Itoa(int(p.Live.State.Flops)))
	}
	return strings.Join(ends, " ")
}

// birdWith returns BIRD with one session, for both families, and further text.
func birdWith(session, more string) routerDaemon {
	return routerDaemon{`mkdir -p /run/bird && exec bird -f -c /etc/kiln-bgp.conf`, fmt.Sprintf(`router id %s;
protocol device {}
protocol direct { ipv4; ipv6; }
protocol kernel { ipv4 { export where source = RTS_BGP; }; }
protocol kernel { ipv6 { export where source = RTS_BGP; }; }
protocol bfd {}
%s
protocol bgp {
  neighbor %s as 65001;
  hold time 9; connect retry time 1; error wait time 1, 5;
  ipv4 { import all; export where source = RTS_STATIC; };
  ipv6 { import all; export none; };
%s}
`, far4, more, near4, session)}
}

// peerRouter is a router with a real kernel.
type peerRouter struct {
	*testing.T
	table *netlink.Handle
	pid   string
}

// newPeerRouter links a new namespace to the node and starts a daemon in it. The test needs the root file system of `make bgp`.
func newPeerRouter(t *testing.T, d routerDaemon) *peerRouter {
	t.Helper()
	if os.Getenv("KILN_BGP_DAEMONS") == "" { // FRR and BIRD are large downloads, which make test does not need
		t.Skip("make bgp runs the tests with daemons of other projects")
	}
	root, err := prepared.File("router")
	must.Succeed(t, err)
	r := &peerRouter{T: t, table: link(t)}
	must.Succeed(t, os.WriteFile(filepath.Join(root, "etc/kiln-bgp.conf"), []byte(d.config), 0o644))
	mounts := fmt.Sprintf("mount --make-rprivate / && mount -t proc proc %[1]s/proc && mount -t tmpfs run %[1]s/run && mount --bind /dev %[1]s/dev && exec chroot %[1]s sh -c ", root)
	// The daemons are those of Debian: interoperability is what the test is about.
	cmd := exec.Command("nsenter", "--net=/run/netns/router", "--", "sh", "-c", mounts+"'"+d.script+"'")
	log := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	must.Succeed(t, cmd.Start())
	r.pid = strconv.Itoa(cmd.Process.Pid)
	t.Cleanup(func() { // the other daemons end with the first process of their namespace
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return r
}

// link makes the namespace router, and an interface in it and here, with a bridge in between.
func link(t *testing.T) *netlink.Handle {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := netns.Get()
	must.Succeed(t, err)
	there, err := netns.NewNamed("router")
	must.Succeed(t, err)
	must.Succeed(t, netns.Set(here))
	t.Cleanup(func() { must.Succeed(t, netns.DeleteNamed("router")) })
	must.Succeed(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "middle"}}))
	for port, end := range map[string]netns.NsHandle{nearPort: here, farPort: there} {
		must.Succeed(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: port}, PeerName: "wan", PeerNamespace: netlink.NsFd(end)}))
		plug(t, port, true)
	}
	for _, name := range []string{"middle", nearPort, farPort} {
		l, err := netlink.LinkByName(name)
		must.Succeed(t, err)
		must.Succeed(t, netlink.LinkSetUp(l))
	}
	handle, err := netlink.NewHandleAt(there)
	must.Succeed(t, err)
	t.Cleanup(handle.Close)
	local, err := netlink.NewHandleAt(here)
	must.Succeed(t, err)
	for h, addresses := range map[*netlink.Handle][]string{local: {near4 + "/24", near6 + "/64"}, handle: {far4 + "/24", far6 + "/64"}} {
		for _, name := range []string{"lo", "wan"} {
			l, err := h.LinkByName(name)
			must.Succeed(t, err)
			must.Succeed(t, h.LinkSetUp(l))
			for _, a := range addresses {
				if name == "wan" {
					address, err := netlink.ParseAddr(a)
					must.Succeed(t, err)
					address.Flags = syscall.IFA_F_NODAD
					must.Succeed(t, h.AddrAdd(l, address))
				}
			}
		}
	}
	t.Cleanup(func() {
		for _, name := range []string{nearPort, farPort, "middle"} {
			if l, err := local.LinkByName(name); err == nil {
				must.Succeed(t, local.LinkDel(l))
			}
		}
		local.Close()
	})
	return handle
}

// hops returns the next hops of a prefix in the kernel.
func (r *peerRouter) hops(prefix string) []string {
	p := netip.MustParsePrefix(prefix)
	family := netlink.FAMILY_V6
	if p.Addr().Is4() {
		family = netlink.FAMILY_V4
	}
	list, err := r.table.RouteListFiltered(family, &netlink.Route{Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}, netlink.RT_FILTER_DST)
	must.Succeed(r.T, err)
	hops := []string{}
	for _, route := range list {
		if route.Gw != nil {
			hops = append(hops, route.Gw.String())
		}
	}
	return hops
}

// reaches waits until the kernel of the router has this next hop, or none, for a prefix, and returns how long that took.
func (r *peerRouter) reaches(prefix string, via ...string) time.Duration {
	r.Helper()
	began := time.Now()
	eventually.Wait{Pause: 2 * time.Millisecond, Limit: 30 * time.Second, Base: 20 * time.Second}.Empty(r.T, func() string {
		if got := r.hops(prefix); !slices.Equal(got, via) {
			return fmt.Sprintf("the router has %s via %v, want %v", prefix, got, via)
		}
		return ""
	})
	return time.Since(began)
}

// routes waits until the kernel of the router has this number of routes to single IPv4 addresses, and returns how long that took.
func (r *peerRouter) routes(want int) time.Duration {
	r.Helper()
	began := time.Now()
	eventually.Wait{Pause: 5 * time.Millisecond, Limit: 30 * time.Second, Base: 20 * time.Second}.Empty(r.T, func() string {
		list, err := r.table.RouteList(nil, netlink.FAMILY_V4)
		must.Succeed(r.T, err)
		n := 0
		for _, route := range list {
			if route.Gw == nil || route.Dst == nil {
				continue
			}
			if ones, bits := route.Dst.Mask.Size(); ones == bits {
				n++
			}
		}
		if n != want {
			return fmt.Sprintf("the router has %d routes, want %d", n, want)
		}
		return ""
	})
	return time.Since(began)
}

// across returns a peer of the node at the far end of the link.
func across(address string, change ...func(*v1alpha1.SpeakerPeer)) v1alpha1.SpeakerPeer {
	p := v1alpha1.SpeakerPeer{
		Address: address, ASN: 65002, HoldTime: &metav1.Duration{Duration: 9 * time.Second}, ConnectRetry: &metav1.Duration{Duration: time.Second},
	}
	for _, c := range change {
		c(&p)
	}
	return p
}

// summary is the shortest, the median and the longest of some times.
func summary(times []time.Duration) string {
	slices.Sort(times)
	return fmt.Sprintf("%d runs: %s, median %s, at most %s", len(times), times[0].Round(time.Millisecond), times[len(times)/2].Round(time.Millisecond),
		times[len(times)-1].Round(time.Millisecond))
}

// plug connects a port with the bridge between the node and the router, or takes it off. Neither end loses its carrier.
func plug(t *testing.T, port string, in bool) {
	t.Helper()
	p, err := netlink.LinkByName(port)
	must.Succeed(t, err)
	if !in {
		must.Succeed(t, netlink.LinkSetNoMaster(p))
		return
	}
	middle, err := netlink.LinkByName("middle")
	must.Succeed(t, err)
	must.Succeed(t, netlink.LinkSetMaster(p, middle))
}

// vtysh runs a command of FRR.
func (r *peerRouter) vtysh(command string) string {
	r.Helper()
	// The program is FRR's interface.
	out, err := exec.Command("nsenter", "--target", r.pid, "--mount", "--net", "--pid", "--root", "--wd", "--", "vtysh", "-c", command).CombinedOutput()
	if err != nil {
		r.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
}

// steady waits until BFD is up on both sides, and the session is older than a second: FRR 10.3 ignores a failure of BFD in the second of the clock in which the
// session began.
func (r *peerRouter) steady(s *Server) {
	r.Helper()
	eventually.Wait{Base: 20 * time.Second}.Empty(r.T, func() string {
		state, err := s.State(r.Context())
		must.Succeed(r.T, err)
		for _, p := range state.Peers {
			if p.BFD != "up" || !p.Established {
				return fmt.Sprintf("BFD with %s is %s, and BGP %s", p.Address, p.BFD, p.Session)
			}
		}
		var bfd []struct{ Status string }
		must.Succeed(r.T, json.Unmarshal([]byte(r.vtysh("show bfd peers json")), &bfd))
		var bgp struct {
			Peers map[string]struct{ PeerUptimeMsec int }
		}
		must.Succeed(r.T, json.Unmarshal([]byte(r.vtysh("show bgp ipv4 unicast summary json")), &bgp))
		if len(bfd) != 2 || bfd[0].Status != "up" || bfd[1].Status != "up" || bgp.Peers[near4].PeerUptimeMsec < 2000 {
			return fmt.Sprintf("the router has %v and %v", bfd, bgp)
		}
		return ""
	})
}

// cpu returns the time that this process has used.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	must.Succeed(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
