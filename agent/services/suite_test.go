// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/go-logr/logr/funcr"
	"github.com/vishvananda/netlink"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/agent/services"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/panics"
	"github.com/kiln-net/kiln/internal/svc"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/golden"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/internal/testing/prepared"
	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
)

const nodeName = "here"

var (
	config       *rest.Config
	kubeconfig   string // a file with the same content
	programs     string // directory of Kubernetes' programs
	serviceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}
	far          ns.NetNS // a host outside
	router       ns.NetNS // plays the logical router
)

func TestMain(m *testing.M) {
	run := func() (int, error) { return nodetest.Enter() }
	if nodetest.Inside() {
		run = func() (int, error) { return runInside(m) }
	}
	code, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runInside(m *testing.M) (int, error) {
	ctrl.SetLogger(funcr.New(func(_, args string) { fmt.Fprintln(os.Stderr, args) }, funcr.Options{}))
	if err := nodetest.Mount(); err != nil {
		return 1, err
	}
	cache, err := prepared.Dir()
	if err != nil {
		return 1, err
	}
	directory, err := os.MkdirTemp("", "kiln-services")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(directory)
	if err := errors.Join(prepared.UseImagePrograms(directory), connectNode()); err != nil {
		return 1, err
	}
	if err := v1.AddToScheme(scheme.Scheme); err != nil {
		return 1, err
	}
	server, err := apiserver.New()
	if err != nil {
		return 1, err
	}
	server.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", serviceCIDRs[0].String())
	kubeconfig, programs = filepath.Join(directory, "kubeconfig"), filepath.Join(cache, "bin")
	return server.Run(func(started *rest.Config) int {
		config = started
		if err := os.WriteFile(kubeconfig, server.KubeConfig, 0o600); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		k8s.OnlyEvents()
		panics.Record()
		return golden.Check(panics.Code(eventually.Main(m)))
	}), nil
}

// Addresses of the test's networks: outside, between the node and the router, and of pods.
var (
	nodeIPs  = []netip.Prefix{netip.MustParsePrefix("172.30.0.11/24"), netip.MustParsePrefix("fd00:172:30::11/64")}
	farIPs   = []netip.Prefix{netip.MustParsePrefix("172.30.0.99/24"), netip.MustParsePrefix("fd00:172:30::99/64")}
	joinIPs  = []netip.Prefix{netip.MustParsePrefix("100.64.0.2/16"), netip.MustParsePrefix("fd00:100:64::2/112")}
	joinGWs  = []netip.Prefix{netip.MustParsePrefix("100.64.0.1/16"), netip.MustParsePrefix("fd00:100:64::1/112")}
	podGWs   = []netip.Prefix{netip.MustParsePrefix("10.16.0.1/16"), netip.MustParsePrefix("fd00:10:16::1/64")}
	defaults = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
)

// connectNode creates the node's interfaces. Its default routes lead to the host outside.
func connectNode() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	if err := forward(); err != nil {
		return err
	}
	if far, err = namespace("eth0", farIPs, nodeIPs); err != nil {
		return err
	}
	if err := address("eth0-node", nodeIPs, farIPs); err != nil {
		return err
	}
	return connectRouter()
}

// connectRouter creates ovn0, the router behind it, and the router's bridge for pods.
func connectRouter() (err error) {
	if router, err = namespace("lr", joinGWs, joinIPs); err != nil {
		return err
	}
	join, err := netlink.LinkByName("lr-node")
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetName(join, "ovn0"), address("ovn0", joinIPs, nil)); err != nil {
		return err
	}
	for i, gateway := range podGWs {
		to := gateway.Masked()
		route := &netlink.Route{
			LinkIndex: join.Attrs().Index, Gw: joinGWs[i].Addr().AsSlice(),
			Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())},
		}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("add the route to pods: %w", err)
		}
	}
	return router.Do(func(ns.NetNS) error {
		if err := forward(); err != nil {
			return err
		}
		return errors.Join(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "pods"}}), address("pods", podGWs, nil))
	})
}

// forward enables forwarding in the current namespace.
func forward() error {
	for file, value := range map[string]string{
		"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1", "net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/default/rp_filter": "0",
		"net/ipv4/conf/all/send_redirects": "0", "net/ipv4/conf/default/send_redirects": "0",
		"net/ipv6/conf/default/accept_dad": "0", "net/ipv6/conf/all/accept_dad": "0",
	} {
		if err := os.WriteFile("/proc/sys/"+file, []byte(value), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// address brings an interface up with addresses, and with default routes through a gateway of each family.
func address(name string, addresses, gateways []netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	for _, a := range addresses {
		ip := &net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ip, Flags: 0x02}); err != nil { // without duplicate address detection
			return fmt.Errorf("add %s: %w", a, err)
		}
	}
	for i, gateway := range gateways {
		to := &net.IPNet{IP: defaults[i].Addr().AsSlice(), Mask: net.CIDRMask(0, defaults[i].Addr().BitLen())}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Gw: gateway.Addr().AsSlice()}); err != nil {
			return fmt.Errorf("add the route by %s: %w", gateway, err)
		}
	}
	return nil
}

// world is a node with a proxy, and an empty cluster.
type world struct {
	*testing.T
	client         client.Client
	far            ns.NetNS
	kubeProxyCheck *services.KubeProxyCheck // of the proxies, if any
	stop           func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := emptyWorld(t)
	w.start()
	return w
}

// emptyWorld returns a world without a proxy.
func emptyWorld(t *testing.T) *world {
	t.Helper()
	c, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	must.Succeed(t, err)
	return &world{T: t, client: c, far: far}
}

// namespace creates a network namespace with one interface. The other end is in the current namespace and has the name <name>-node.
func namespace(name string, addresses, gateways []netip.Prefix) (ns.NetNS, error) {
	made, err := testutils.NewNS()
	if err != nil {
		return nil, err
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name + "-node"}, PeerName: name, PeerNamespace: netlink.NsFd(made.Fd())}
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, err
	}
	return made, made.Do(func(ns.NetNS) error {
		for _, file := range []string{"all", "default", name} {
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+file+"/accept_dad", []byte("0"), 0o644); err != nil {
				return err
			}
		}
		return errors.Join(address("lo", nil, nil), address(name, addresses, gateways))
	})
}

// start runs a proxy until stop, or until the test ends.
func (w *world) start() {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	nft, err := knftables.New(knftables.InetFamily, services.Table)
	must.Succeed(w, err)
	c, err := cache.New(config, cache.Options{Scheme: scheme.Scheme, ByObject: services.Watched(true)})
	must.Succeed(w, err)
	done := make(chan struct{}, 2)
	go func() { _ = c.Start(ctx); done <- struct{}{} }()
	proxy := &services.Proxy{Cache: c, Node: nodeName, NFT: nft, CIDRs: svc.CIDRs{Configured: serviceCIDRs, Reader: c}, KubeProxy: w.kubeProxyCheck}
	go func() {
		if err := proxy.Start(ctx); err != nil {
			w.Errorf("proxy: %v", err)
		}
		done <- struct{}{}
	}()
	stopped := false
	w.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			<-done
			<-done
		}
	}
	w.Cleanup(w.stop)
}

// pod is an endpoint: servers in a namespace that return the client's address.
type pod struct {
	name string
	ns   ns.NetNS
	ips  []netip.Addr
}

func (w *world) pod(name string, n int) *pod {
	w.Helper()
	p := &pod{name: name, ips: []netip.Addr{netip.AddrFrom4([4]byte{10, 16, 1, byte(n)}), netip.MustParseAddr(fmt.Sprintf("fd00:10:16::1:%x", n))}}
	must.Succeed(w, router.Do(func(ns.NetNS) (err error) {
		p.ns, err = namespace(name, []netip.Prefix{netip.PrefixFrom(p.ips[0], 16), netip.PrefixFrom(p.ips[1], 64)}, podGWs)
		if err != nil {
			return err
		}
		bridge, err := netlink.LinkByName("pods")
		if err != nil {
			return err
		}
		link, err := netlink.LinkByName(name + "-node")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetMaster(link, bridge), netlink.LinkSetUp(link))
	}))
	w.Cleanup(func() {
		_ = router.Do(func(ns.NetNS) error {
			return netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name + "-node"}})
		})
		_ = errors.Join(p.ns.Close(), testutils.UnmountNS(p.ns))
	})
	w.serve(p.name, p.ns)
	return p
}

// serve responds at port 8080 with the server's name and the client's address.
func (w *world) serve(name string, in ns.NetNS) {
	w.Helper()
	must.Succeed(w, in.Do(func(ns.NetNS) error {
		tcp, err := net.Listen("tcp", ":8080")
		if err != nil {
			return err
		}
		udp, err := net.ListenPacket("udp", ":8080")
		if err != nil {
			return err
		}
		w.Cleanup(func() { _ = errors.Join(tcp.Close(), udp.Close()) })
		go func() {
			for {
				c, err := tcp.Accept()
				if err != nil {
					return
				}
				_, _ = fmt.Fprintf(c, "%s %s", name, c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap())
				_ = c.Close()
			}
		}()
		go func() {
			buffer := make([]byte, 100)
			for {
				_, from, err := udp.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = udp.WriteTo([]byte(name+" "+from.(*net.UDPAddr).AddrPort().Addr().Unmap().String()), from)
			}
		}()
		return nil
	}))
}

// answer is a server's response: its name, and the client's address that it saw.
type answer struct {
	server, client string
	err            error
}

func (a answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	return a.server + " sees " + a.client
}

// Time limits of a request: short for attempts that are repeated, long for single attempts on a busy machine.
const (
	shortly  = time.Second
	patience = 2 * time.Minute
)

// ask connects from a namespace (nil is the node's) and reads the response. limit applies to each of both steps.
func (w *world) ask(from ns.NetNS, network string, to netip.AddrPort, limit time.Duration) (a answer) {
	w.Helper()
	do := func(f func(ns.NetNS) error) error { return f(nil) }
	if from != nil {
		do = from.Do
	}
	a.err = do(func(ns.NetNS) error {
		c, err := net.DialTimeout(network, to.String(), limit)
		if err != nil {
			return err
		}
		defer c.Close()
		text, err := talk(c, network, limit)
		a.server, a.client, _ = strings.Cut(text, " ")
		return err
	})
	return a
}

func talk(c net.Conn, network string, limit time.Duration) (string, error) {
	_ = c.SetDeadline(time.Now().Add(limit))
	if network == "udp" {
		if _, err := c.Write([]byte("?")); err != nil {
			return "", err
		}
	}
	buffer := make([]byte, 100)
	n, err := c.Read(buffer)
	return string(buffer[:n]), err
}

// eventually waits until what returns "".
func (w *world) eventually(what func() string) {
	w.Helper()
	if wrong := (eventually.Wait{Limit: patience}).Last(w, what); wrong != "" {
		out, err := nodetest.TryNFT("list table inet " + services.Table)
		w.Logf("%s (%v)", out, err)
		w.Fatal(wrong)
	}
}
