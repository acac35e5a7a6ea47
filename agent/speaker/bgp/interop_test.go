// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/eventually"
	"github.com/kiln-net/kiln/internal/prepared"
)

// Addresses of a link between the node and a router in a namespace of its own.
const (
	near4, far4 = "198.51.100.1", "198.51.100.2"
	near6, far6 = "2001:db8:1::1", "2001:db8:1::2"
)

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
	return routerDaemon{
		`mkdir -p /run/frr /var/tmp/frr && chown frr:frr /run/frr /var/tmp/frr && /usr/lib/frr/zebra -d -P 0 && /usr/lib/frr/bfdd -d -P 0 &&
exec /usr/lib/frr/bgpd -P 0 -f /etc/kiln-bgp.conf --log stdout`, config,
	}
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
}

// newPeerRouter links a new namespace to the node and starts a daemon in it. The test needs the root file system of `make bgp`.
func newPeerRouter(t *testing.T, d routerDaemon) *peerRouter {
	t.Helper()
	if os.Getenv("KILN_BGP_DAEMONS") == "" { // FRR and BIRD are large downloads, which make test does not need
		t.Skip("make bgp runs the tests with daemons of other projects")
	}
	root, err := prepared.File("router")
	must(t, err)
	r := &peerRouter{T: t, table: link(t)}
	must(t, os.WriteFile(filepath.Join(root, "etc/kiln-bgp.conf"), []byte(d.config), 0o644))
	mounts := fmt.Sprintf("mount --make-rprivate / && mount -t proc proc %[1]s/proc && mount -t tmpfs run %[1]s/run && mount --bind /dev %[1]s/dev && exec chroot %[1]s sh -c ", root)
	// The daemons are those of Debian: interoperability is what the test is about.
	cmd := exec.Command("nsenter", "--net=/run/netns/router", "--", "sh", "-c", mounts+"'"+d.script+"'")
	log := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	must(t, cmd.Start())
	t.Cleanup(func() { // the other daemons end with the first process of their namespace
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return r
}

// link makes the namespace router, and an interface in it and here.
func link(t *testing.T) *netlink.Handle {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := netns.Get()
	must(t, err)
	there, err := netns.NewNamed("router")
	must(t, err)
	must(t, netns.Set(here))
	t.Cleanup(func() { must(t, netns.DeleteNamed("router")) })
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wan"}, PeerName: "wan", PeerNamespace: netlink.NsFd(there)}))
	handle, err := netlink.NewHandleAt(there)
	must(t, err)
	t.Cleanup(handle.Close)
	local, err := netlink.NewHandleAt(here)
	must(t, err)
	for h, addresses := range map[*netlink.Handle][]string{local: {near4 + "/24", near6 + "/64"}, handle: {far4 + "/24", far6 + "/64"}} {
		for _, name := range []string{"lo", "wan"} {
			l, err := h.LinkByName(name)
			must(t, err)
			must(t, h.LinkSetUp(l))
			for _, a := range addresses {
				if name == "wan" {
					address, err := netlink.ParseAddr(a)
					must(t, err)
					address.Flags = syscall.IFA_F_NODAD
					must(t, h.AddrAdd(l, address))
				}
			}
		}
	}
	t.Cleanup(func() {
		if l, err := local.LinkByName("wan"); err == nil {
			must(t, local.LinkDel(l))
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
	must(r.T, err)
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

// cut sends the packets of the node to the router to a MAC address that does not exist, and returns what restores them.
func cut(t *testing.T) (restore func()) {
	t.Helper()
	wan, err := netlink.LinkByName("wan")
	must(t, err)
	var wrong []*netlink.Neigh
	for _, a := range []string{far4, far6} {
		wrong = append(wrong, &netlink.Neigh{
			LinkIndex: wan.Attrs().Index, IP: net.ParseIP(a), State: netlink.NUD_PERMANENT, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		})
	}
	for _, n := range wrong {
		must(t, netlink.NeighSet(n))
	}
	return func() {
		for _, n := range wrong {
			must(t, netlink.NeighDel(n))
		}
	}
}

func TestFRRWithBFD(t *testing.T) {
	r := newPeerRouter(t, frrWith("bfd", "password right"))
	s := newServer(t)
	bfd := func(p *v1alpha1.SpeakerPeer) {
		p.BFD, p.Password = &v1alpha1.SpeakerBFD{}, &v1alpha1.SecretKey{Name: "s"}
	}
	spec := &v1alpha1.Speaker{ASN: 65001, Peers: []v1alpha1.SpeakerPeer{across(far4, bfd), across(far6, bfd)}}
	must(t, s.Announce(prefixes("10.16.0.0/16", "fd00:10:16::/112"), nil))
	must(t, s.Configure(t.Context(), ConfigOf(spec, testNode(map[string]string{"s": "right"}))))
	r.reaches("10.16.0.0/16", near4)
	var withdrawals []time.Duration
	for range 20 {
		must(t, s.Announce(prefixes("10.16.0.7/32"), nil))
		r.reaches("10.16.0.7/32", near4)
		must(t, s.Announce(nil, prefixes("10.16.0.7/32")))
		withdrawals = append(withdrawals, r.reaches("10.16.0.7/32"))
	}
	t.Log("a withdrawal reaches the kernel of the router after", summary(withdrawals))
	eventually.Wait{Base: 20 * time.Second}.Empty(t, func() string {
		state, err := s.State(t.Context())
		must(t, err)
		for _, p := range state.Peers {
			if p.BFD != "up" || !p.Established {
				return fmt.Sprintf("BFD with %s is %s, and BGP %s", p.Address, p.BFD, p.Session)
			}
		}
		return ""
	})
}

func TestFRRWithoutBFDWaitsForTheHoldTime(t *testing.T) {
	r := newPeerRouter(t, frrWith())
	s := newServer(t)
	must(t, s.Announce(prefixes("10.16.0.0/16"), nil))
	must(t, s.Configure(t.Context(), with(across(far4), across(far6))))
	r.reaches("10.16.0.0/16", near4)
	restore := cut(t)
	defer restore()
	took := r.reaches("10.16.0.0/16")
	t.Log("the router loses a node that is cut off, with a hold time of 9 s, after", took.Round(time.Millisecond))
	if took < 4*time.Second {
		t.Errorf("the router lost the node after %s", took)
	}
}

func TestFRRKeepsRoutesDuringARestart(t *testing.T) {
	r := newPeerRouter(t, frrWith())
	graceful := func(p *v1alpha1.SpeakerPeer) { p.GracefulRestart = &v1alpha1.SpeakerGracefulRestart{} }
	for _, kept := range []string{"10.16.0.1/32", "10.16.0.2/32"} { // the second process lacks the first prefix
		s := newServer(t)
		must(t, s.Announce(prefixes("10.16.0.3/32", kept), nil))
		must(t, s.Configure(t.Context(), with(across(far4, graceful))))
		r.reaches(kept, near4)
		s.Stop(t.Context())
		eventually.Stays(t, 2*time.Second, func() string {
			if len(r.hops("10.16.0.3/32")) != 1 {
				return "the router has lost a route during a restart"
			}
			return ""
		})
	}
	r.reaches("10.16.0.1/32")
}

func TestBIRDConnectsByIBGP(t *testing.T) {
	d := birdWith("  local as 65001;\n  password \"right\";\n", "")
	r := newPeerRouter(t, d)
	s := NewServer(slog.New(slog.DiscardHandler), v1alpha1.DefaultBGPPort)
	t.Cleanup(func() { must(t, s.Configure(t.Context(), nil)) })
	spec := &v1alpha1.Speaker{ASN: 65001, Peers: []v1alpha1.SpeakerPeer{across(far4, func(p *v1alpha1.SpeakerPeer) {
		p.ASN, p.Connection, p.Password = 65001, v1alpha1.ConnectionPassive, &v1alpha1.SecretKey{Name: "s"}
	})}}
	must(t, s.Announce(prefixes("10.16.0.0/16"), nil))
	must(t, s.Configure(t.Context(), ConfigOf(spec, testNode(map[string]string{"s": "right"}))))
	r.reaches("10.16.0.0/16", near4)
}

func TestBIRDSends100000Routes(t *testing.T) {
	var routes strings.Builder
	routes.WriteString("protocol static { ipv4;\n")
	for i := range 100000 {
		fmt.Fprintf(&routes, "route 20.%d.%d.%d/32 blackhole;\n", i>>16, i>>8&255, i&255)
	}
	routes.WriteString("}\n")
	r := newPeerRouter(t, birdWith("  local as 65002;\n  passive;\n", routes.String()))
	s := newServer(t)
	must(t, s.Announce(prefixes("10.16.0.0/16"), nil))
	config := func(limit int32) *Config {
		return with(across(far4, func(p *v1alpha1.SpeakerPeer) { p.MaxReceived = limit }))
	}
	must(t, s.Configure(t.Context(), config(0)))
	eventually.Wait{Base: 20 * time.Second}.Empty(t, func() string {
		state, err := s.State(t.Context())
		must(t, err)
		if p := state.Peers[0]; !strings.Contains(p.Message, "maxReceived (10000)") {
			return "the session is " + p.Session + ": " + p.Message
		}
		return ""
	})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	must(t, s.Configure(t.Context(), config(200000)))
	eventually.Wait{Base: 30 * time.Second}.Empty(t, func() string {
		state, err := s.State(t.Context())
		must(t, err)
		if n := state.Peers[0].Received["ipv4"]; n != 100000 {
			return fmt.Sprintf("%d routes arrived", n)
		}
		return ""
	})
	r.reaches("10.16.0.0/16", near4)
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("100,000 ignored routes take %d MB", (after.HeapAlloc-before.HeapAlloc)>>20)
}

func TestFiveThousandPrefixes(t *testing.T) {
	r := newPeerRouter(t, frrWith())
	s := newServer(t)
	must(t, s.Configure(t.Context(), with(across(far4))))
	must(t, s.Announce(prefixes("10.15.0.0/16"), nil))
	r.reaches("10.15.0.0/16", near4)
	var all []netip.Prefix
	for i := range 5000 {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 16, byte(i >> 8), byte(i)}), 32))
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	must(t, s.Announce(all, nil))
	t.Log("5,000 prefixes reach the kernel of the router after", r.reaches(all[4999].String(), near4).Round(time.Millisecond))
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("they take %d kB", (after.HeapAlloc-before.HeapAlloc)>>10)
	var changes []time.Duration
	for i := range 20 {
		must(t, s.Announce(nil, all[i:i+1]))
		changes = append(changes, r.reaches(all[i].String()))
	}
	t.Log("one of them is withdrawn after", summary(changes))
}
