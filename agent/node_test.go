// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent"
	"github.com/kiln-net/kiln/agent/sandbox"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/daemontest"
	"github.com/kiln-net/kiln/internal/eventually"
	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/supervisor/supervisortest"
	"github.com/kiln-net/kiln/internal/validation"
)

// Parameters of the node.
const (
	nodeName   = "node-1"
	healthPort = "127.0.0.1:10665"
	tunnelMTU  = 1500
	podMTU     = tunnelMTU - 100
)

var (
	nodeIPs   = []netip.Prefix{netip.MustParsePrefix("172.30.0.1/24"), netip.MustParsePrefix("fd00:172:30::1/64")}
	outside   = []netip.Prefix{netip.MustParsePrefix("172.30.0.254/24"), netip.MustParsePrefix("fd00:172:30::fe/64")}
	joinCIDRs = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("fd00:100:64::/112")}
	joinIPs   = []netip.Addr{netip.MustParseAddr("100.64.0.2"), netip.MustParseAddr("fd00:100:64::2")}
	joinGWs   = []netip.Addr{netip.MustParseAddr("100.64.0.1"), netip.MustParseAddr("fd00:100:64::1")}
	podCIDRs  = []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16"), netip.MustParsePrefix("fd00:10:16::/112")}
	podGWs    = []netip.Addr{netip.MustParseAddr("10.16.0.1"), netip.MustParseAddr("fd00:10:16::1")}
)

// node is a node with Open vSwitch in its userspace datapath and the agent. The test plays ovn-controller and the controller.
type node struct {
	testing.TB
	root    testing.TB // the test that created the node
	api     client.Client
	options agent.Options
	dir     string
	// families is the number of the cluster's address families; 1 means IPv4 only.
	families int

	ovs      *ovsdbclient.Client
	server   *daemontest.Daemon // ovsdb-server
	vswitchd *daemontest.Daemon
	agent    *daemontest.Daemon
	// idle stops the simulated ovn-controller from installing flows.
	idle atomic.Bool
}

func newNode(t testing.TB) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "kn")
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs of the daemons are in %s", dir)
			return
		}
		os.RemoveAll(dir)
	})
	n := &node{TB: t, root: t, dir: dir, families: 2, options: agent.Options{
		Node: nodeName, Namespace: "default", Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, TunnelType: "geneve",
		PluginSource: plugins, CNIBinDir: filepath.Join(dir, "bin"), CNIConfDir: filepath.Join(dir, "net.d"),
		CNISocket: filepath.Join(dir, "cni.sock"), OVSSocket: filepath.Join(dir, "db.sock"), Address: healthPort,
	}}
	must(t, errors.Join(os.Mkdir(n.options.CNIBinDir, 0o755), os.Mkdir(n.options.CNIConfDir, 0o755)))
	scheme := runtime.NewScheme()
	must(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme)))
	n.api, err = client.New(config, client.Options{Scheme: scheme})
	must(t, err)
	t.Cleanup(func() {
		for _, name := range []string{"ovn0", "br-int", "ovs-netdev"} { // they remain after ovs-vswitchd is killed
			must(t, sandbox.Remove(name))
		}
	})
	n.startOVS()
	n.clear()
	t.Cleanup(n.clear)
	return n
}

func (n *node) clear() {
	for _, o := range []client.Object{&corev1.Pod{}, &corev1.Event{}, &coordinationv1.Lease{}} {
		must(n.TB, n.api.DeleteAllOf(context.Background(), o, client.InNamespace("default"), client.GracePeriodSeconds(0)))
	}
	for _, o := range []client.Object{&corev1.Node{}, &v1.Subnet{}} {
		must(n.TB, n.api.DeleteAllOf(context.Background(), o))
	}
}

// run starts a daemon of Open vSwitch.
func (n *node) run(program string, args ...string) *daemontest.Daemon {
	n.Helper()
	line := append(supervisortest.Program(n.TB, program), args...)
	command := exec.Command(line[0], line[1:]...)
	command.Env = append(os.Environ(), "OVS_RUNDIR="+n.dir, "OVS_LOGDIR="+n.dir, "OVS_DBDIR="+n.dir, "OVS_SYSCONFDIR="+n.dir,
		"OVS_PKGDATADIR="+filepath.Dir(supervisortest.File(n.TB, "usr/share/openvswitch/vswitch.ovsschema")))
	name := filepath.Base(program)
	return daemontest.Start(n.root, name, filepath.Join(n.dir, name+".log"), command)
}

func (n *node) startOVS() {
	n.Helper()
	create := append(supervisortest.Program(n.TB, "usr/bin/ovsdb-tool"), "create", filepath.Join(n.dir, "conf.db"),
		supervisortest.File(n.TB, "usr/share/openvswitch/vswitch.ovsschema"))
	out, err := exec.Command(create[0], create[1:]...).CombinedOutput()
	if err != nil {
		n.Fatalf("create conf.db: %v\n%s", err, out)
	}
	n.startDatabase()
	n.vsctl("--no-wait", "--", "init", "--", "set", "Open_vSwitch", ".", "external_ids:ovn-encap-ip=192.168.77.1", "--",
		"add-br", "br-int", "--", "set", "Bridge", "br-int", "datapath_type=netdev", "fail_mode=standalone")
	n.startVSwitchd()
	n.ovs, err = ovsdbclient.VSwitch(n.Context(), ovsdbclient.Options{Endpoints: []string{"unix:" + n.options.OVSSocket}, Log: logr.Discard()})
	must(n.TB, err)
	n.Cleanup(n.ovs.Close)
	n.playOVNController()
}

func (n *node) startDatabase() {
	n.Helper()
	n.server = n.run("usr/sbin/ovsdb-server", filepath.Join(n.dir, "conf.db"), "--remote=punix:"+n.options.OVSSocket, "--no-chdir",
		"--unixctl="+filepath.Join(n.dir, "db.ctl"))
	n.eventually("ovsdb-server listens", func() bool {
		connection, err := net.Dial("unix", n.options.OVSSocket)
		if err == nil {
			connection.Close()
		}
		return err == nil
	})
}

func (n *node) startVSwitchd() {
	n.Helper()
	n.vswitchd = n.run("usr/lib/openvswitch-switch/ovs-vswitchd", "unix:"+n.options.OVSSocket, "--no-chdir", "--unixctl="+filepath.Join(n.dir, "vs.ctl"))
}

// playOVNController simulates ovn-controller: it sets ovn-installed on every interface that has a device and a logical port.
func (n *node) playOVNController() {
	install := func(row model.Model) {
		iface, ok := row.(*vswitch.Interface)
		if !ok || n.idle.Load() || iface.ExternalIDs["iface-id"] == "" || iface.ExternalIDs["ovn-installed"] != "" || iface.Ofport == nil || *iface.Ofport <= 0 {
			return
		}
		iface = &vswitch.Interface{UUID: iface.UUID}
		operations, err := n.ovs.Where(iface).Mutate(iface, model.Mutation{
			Field: &iface.ExternalIDs, Mutator: ovsdb.MutateOperationInsert, Value: map[string]string{"ovn-installed": "true"},
		})
		if err == nil {
			_, _ = n.ovs.Transact(context.Background(), operations...)
		}
	}
	n.ovs.Cache().AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc:    func(_ string, row model.Model) { install(row) },
		UpdateFunc: func(_ string, _, row model.Model) { install(row) },
	})
}

// connectNode creates the interfaces of the node's namespace: eth0 with the node's addresses and a default route, eth1 for tunnels. The
// other ends are eth0-out and eth1-out.
func connectNode() error {
	for name, addresses := range map[string][]netip.Prefix{"eth0": nodeIPs, "eth1": {netip.MustParsePrefix("192.168.77.1/24")}} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = name, tunnelMTU
		veth := netlink.NewVeth(attrs)
		veth.PeerName = name + "-out"
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		peer, err := netlink.LinkByName(veth.PeerName)
		if err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkSetUp(veth), netlink.LinkSetUp(peer), addAddresses(veth, addresses...)); err != nil {
			return err
		}
	}
	return errors.Join(addRoute("0.0.0.0/0", outside[0].Addr()), addRoute("::/0", outside[1].Addr()))
}

// connectIPv6 restores the addresses and routes that the node loses when IPv6 is disabled.
func connectIPv6() error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	return errors.Join(addAddresses(link, nodeIPs[1]), addRoute("::/0", outside[1].Addr()))
}

// register creates the Node object and the subnets, as the kubelet and the controller would.
func (n *node) register() {
	n.Helper()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	must(n.TB, n.api.Create(n.Context(), object))
	for _, p := range nodeIPs[:n.families] {
		object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: p.Addr().String()})
	}
	must(n.TB, n.api.Status().Update(n.Context(), object))
	for name, cidrs := range map[string][]netip.Prefix{"join": joinCIDRs, "ovn-default": podCIDRs} {
		subnet := &v1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}}
		subnet.Spec.CIDRBlock = ipfamily.Join(cidrs[:n.families])
		if name == "ovn-default" {
			subnet.Spec.Gateway = ipfamily.Join(podGWs[:n.families])
		}
		subnet.Spec.NATOutgoing = name == "ovn-default"
		n.create(subnet)
	}
}

// create creates a subnet and marks it as valid.
func (n *node) create(s *v1.Subnet) {
	n.Helper()
	must(n.TB, n.api.Create(n.Context(), s))
	n.judge(s, nil)
}

// judge writes the result of a subnet's validation, as the controller would.
func (n *node) judge(s *v1.Subnet, problem *validation.Problem) {
	n.Helper()
	k8s.SetConditions(&s.Status.Conditions, s.Generation, k8s.Validated(problem))
	if problem == nil {
		s.Status.ValidatedSpec = s.Spec.DeepCopy()
	}
	must(n.TB, n.api.Status().Update(n.Context(), s))
}

// allocate writes the node's annotations, as the controller would.
func (n *node) allocate() {
	n.Helper()
	object := &corev1.Node{}
	must(n.TB, n.api.Get(n.Context(), client.ObjectKey{Name: nodeName}, object))
	base := object.DeepCopy()
	object.Annotations = v1.PodNetwork{
		Allocated: true, Addresses: joinIPs[:n.families], MAC: net.HardwareAddr{0x02, 0, 0, 0, 0x64, 2}, CIDRs: joinCIDRs[:n.families],
		Gateways: joinGWs[:n.families], LogicalSwitch: "join", LogicalRouter: "ovn-cluster",
	}.Annotations()
	must(n.TB, n.api.Patch(n.Context(), object, client.MergeFrom(base)))
}

// startAgent starts the agent's process. It does not wait until the agent is ready.
func (n *node) startAgent() {
	n.Helper()
	self, err := os.Executable()
	must(n.TB, err)
	options, err := json.Marshal(n.options)
	must(n.TB, err)
	command := exec.Command(self)
	command.Env = append(os.Environ(), envAgent+"="+string(options), envConfig+"="+kubeconfig)
	n.agent = daemontest.Start(n.root, "the agent", filepath.Join(n.dir, "agent.log"), command).HidesToken(token)
}

// serving returns a node whose agent is ready to attach pods.
func serving(t testing.TB) *node {
	t.Helper()
	n := newNode(t)
	n.register()
	n.allocate()
	n.startAgent()
	n.waitReady()
	return n
}

func (n *node) waitReady() {
	n.Helper()
	n.eventually("the agent is ready", func() bool { return n.health("/readyz") == http.StatusOK })
	n.eventually("the plugin reaches the agent", func() bool {
		connection, err := net.Dial("unix", n.options.CNISocket)
		if err == nil {
			connection.Close()
		}
		return err == nil
	})
}

func (n *node) health(path string) int {
	answer, err := http.Get("http://" + healthPort + path)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

// eventually waits for an event in another process.
func (n *node) eventually(what string, holds func() bool) {
	n.Helper()
	eventually.Wait{For: what, Limit: patience}.Holds(n, holds)
}

// interfaces returns the rows of containers by name. It reads them from the database, because this client's replica may lag behind the
// agent's.
func (n *node) interfaces() map[string]vswitch.Interface {
	n.Helper()
	results, err := n.ovs.Transact(n.Context(), ovsdb.Operation{
		Op: ovsdb.OperationSelect, Table: "Interface", Columns: []string{"_uuid", "name", "external_ids"},
	})
	must(n.TB, err)
	out := map[string]vswitch.Interface{}
	for _, row := range results[0].Rows {
		iface := vswitch.Interface{UUID: row["_uuid"].(ovsdb.UUID).GoUUID, Name: row["name"].(string), ExternalIDs: map[string]string{}}
		for key, value := range row["external_ids"].(ovsdb.OvsMap).GoMap {
			iface.ExternalIDs[key.(string)] = value.(string)
		}
		if iface.ExternalIDs["container_id"] != "" {
			out[iface.Name] = iface
		}
	}
	return out
}

func addAddresses(link netlink.Link, prefixes ...netip.Prefix) error {
	for _, p := range prefixes {
		address := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
		if p.Addr().Is6() {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, address); err != nil {
			return fmt.Errorf("add %s to %s: %w", p, link.Attrs().Name, err)
		}
	}
	return nil
}

func addRoute(to string, via netip.Addr) error {
	_, network, err := net.ParseCIDR(to)
	if err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{Dst: network, Gw: via.AsSlice()}); err != nil {
		return fmt.Errorf("add route to %s via %s: %w", to, via, err)
	}
	return nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// detach removes a port without the agent.
func (n *node) detach(name string) {
	n.Helper()
	n.vsctl("del-port", "br-int", name)
}

func (n *node) vsctl(args ...string) {
	n.Helper()
	line := append(supervisortest.Program(n.TB, "usr/bin/ovs-vsctl"), "--db=unix:"+n.options.OVSSocket, "--timeout=60")
	line = append(line, args...)
	if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
		n.Fatalf("ovs-vsctl %v: %v\n%s", args, err, out)
	}
}
