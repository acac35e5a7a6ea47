// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent"
	"github.com/kiln-net/kiln/agent/host"
	"github.com/kiln-net/kiln/agent/sandbox"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/testing/daemontest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/validation"
)

// Parameters of the node. HealthAddress is the agent's address of metrics and health, and MTUs are in bytes.
const (
	NodeName      = "node-1"
	HealthAddress = "127.0.0.1:10665"
	TunnelMTU     = 1500
	PodMTU        = TunnelMTU - 100
)

// Patience bounds one operation of the runtime, and waits for events, on a busy machine. It is slightly below the agent's limit of an
// ADD.
const Patience = 90 * time.Second

// Addresses of the node and its networks, first of IPv4, then of IPv6. Outside are those of the host at the other end of eth0.
var (
	NodeIPs   = []netip.Prefix{netip.MustParsePrefix("172.30.0.1/24"), netip.MustParsePrefix("fd00:172:30::1/64")}
	Outside   = []netip.Prefix{netip.MustParsePrefix("172.30.0.254/24"), netip.MustParsePrefix("fd00:172:30::fe/64")}
	JoinCIDRs = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("fd00:100:64::/112")}
	JoinIPs   = []netip.Addr{netip.MustParseAddr("100.64.0.2"), netip.MustParseAddr("fd00:100:64::2")}
	JoinGWs   = []netip.Addr{netip.MustParseAddr("100.64.0.1"), netip.MustParseAddr("fd00:100:64::1")}
	PodCIDRs  = []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16"), netip.MustParsePrefix("fd00:10:16::/112")}
	PodGWs    = []netip.Addr{netip.MustParseAddr("10.16.0.1"), netip.MustParseAddr("fd00:10:16::1")}
)

// Node is a node with Open vSwitch in its userspace datapath and the agent. The test plays ovn-controller and the controller.
type Node struct {
	testing.TB
	Root    testing.TB // the test that created the node
	API     client.Client
	Config  *rest.Config // of API
	Options agent.Options
	// Families is the number of the cluster's address families; 1 means IPv4 only.
	Families int

	OVS      *ovsdbclient.Client
	Database *daemontest.Daemon // ovsdb-server
	VSwitchd *daemontest.Daemon
	Agent    *daemontest.Daemon
	// Idle stops the simulated ovn-controller from installing flows.
	Idle atomic.Bool

	dir   string // of the logs and sockets
	relay string // the agent's socket of the database, if it is not the server's
}

// NewNode returns a node with Open vSwitch and without an agent. The API server has no objects of an earlier node. It exists until the test
// ends.
func NewNode(t testing.TB) *Node {
	t.Helper()
	must.Succeed(t, setUp())
	dir, err := os.MkdirTemp("", "kn")
	must.Succeed(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs of the daemons are in %s", dir)
			return
		}
		must.Succeed(t, os.RemoveAll(dir))
	})
	n := &Node{TB: t, Root: t, Config: config, dir: dir, Families: 2, Options: agent.Options{
		Node: NodeName, Namespace: "default", Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, TunnelTypes: []string{"geneve"},
		PluginSource: filepath.Join(os.Getenv(envDirectory), "plugins"),
		CNIBinDir:    filepath.Join(dir, "bin"), CNIConfDir: filepath.Join(dir, "net.d"),
		CNISocket: filepath.Join(dir, "cni.sock"), OVSSocket: filepath.Join(dir, "db.sock"), Address: HealthAddress,
	}}
	must.Succeed(t, errors.Join(os.Mkdir(n.Options.CNIBinDir, 0o755), os.Mkdir(n.Options.CNIConfDir, 0o755)))
	scheme := runtime.NewScheme()
	must.Succeed(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	n.API, err = client.New(config, client.Options{Scheme: scheme})
	must.Succeed(t, err)
	t.Cleanup(func() {
		for _, name := range []string{"ovn0", "mirror0", "br-int", "ovs-netdev"} { // they remain after ovs-vswitchd is killed
			must.Succeed(t, sandbox.Remove(name))
		}
	})
	n.startOVS()
	n.clear()
	t.Cleanup(n.clear)
	return n
}

// clear deletes the objects that tests create.
func (n *Node) clear() {
	for _, o := range []client.Object{&corev1.Pod{}, &corev1.Event{}, &coordinationv1.Lease{}} {
		must.Succeed(n.TB, n.API.DeleteAllOf(context.Background(), o, client.InNamespace("default"), client.GracePeriodSeconds(0)))
	}
	for _, o := range []client.Object{&corev1.Node{}, &v1.Subnet{}, &v1.ProviderNetwork{}, &v1.IP{}, &v1alpha1.OVNCluster{}} {
		must.Succeed(n.TB, n.API.DeleteAllOf(context.Background(), o))
	}
}

// In returns the node for use in a subtest. Daemons that the subtest starts belong to the node after it.
func (n *Node) In(t *testing.T) *Node {
	inner := &Node{
		TB: t, Root: n.Root, API: n.API, Config: n.Config, Options: n.Options, dir: n.dir, relay: n.relay, Families: n.Families,
		OVS: n.OVS, Database: n.Database, VSwitchd: n.VSwitchd, Agent: n.Agent,
	}
	t.Cleanup(func() { n.Database, n.VSwitchd, n.Agent = inner.Database, inner.VSwitchd, inner.Agent })
	return inner
}

// Register creates the Node object and the subnets, as the kubelet and the controller would.
func (n *Node) Register() {
	n.Helper()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName}}
	must.Succeed(n.TB, n.API.Create(n.Context(), object))
	for _, p := range NodeIPs[:n.Families] {
		object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: p.Addr().String()})
	}
	must.Succeed(n.TB, n.API.Status().Update(n.Context(), object))
	for name, cidrs := range map[string][]netip.Prefix{"join": JoinCIDRs, "ovn-default": PodCIDRs} {
		subnet := &v1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}}
		subnet.Spec.CIDRBlock = ipfamily.Join(cidrs[:n.Families])
		if name == "ovn-default" {
			subnet.Spec.Gateway = ipfamily.Join(PodGWs[:n.Families])
		}
		subnet.Spec.NATOutgoing = name == "ovn-default"
		n.Create(subnet)
	}
}

// Create creates a subnet and marks it as valid.
func (n *Node) Create(s *v1.Subnet) {
	n.Helper()
	must.Succeed(n.TB, n.API.Create(n.Context(), s))
	n.Judge(s, nil)
}

// Judge writes the result of a subnet's validation, as the controller would.
func (n *Node) Judge(s *v1.Subnet, problem *validation.Problem) {
	n.Helper()
	k8s.SetConditions(&s.Status.Conditions, s.Generation, k8s.Validated(problem))
	if problem == nil {
		s.Status.ValidatedSpec = s.Spec.DeepCopy()
	}
	must.Succeed(n.TB, n.API.Status().Update(n.Context(), s))
}

// Change changes a subnet's spec and marks it as valid.
func (n *Node) Change(name string, f func(*v1.SubnetSpec)) {
	n.Helper()
	n.Judge(n.ChangeOnly(name, f), nil)
}

// ChangeOnly changes a subnet's spec without validating it.
func (n *Node) ChangeOnly(name string, f func(*v1.SubnetSpec)) *v1.Subnet {
	n.Helper()
	s := &v1.Subnet{}
	must.Succeed(n.TB, n.API.Get(n.Context(), client.ObjectKey{Name: name}, s))
	base := s.DeepCopy()
	f(&s.Spec)
	must.Succeed(n.TB, n.API.Patch(n.Context(), s, client.MergeFrom(base)))
	return s
}

// SubnetOf returns a subnet with these CIDRs and no other settings.
func SubnetOf(name, cidrs string) *v1.Subnet {
	return &v1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.SubnetSpec{CIDRBlock: cidrs}}
}

// Allocate writes the record of the node and its annotations, as the controller would.
func (n *Node) Allocate() {
	n.Helper()
	var own []netip.Addr
	for _, p := range NodeIPs[:n.Families] {
		own = append(own, p.Addr())
	}
	n.Record(own...)
	object := &corev1.Node{}
	must.Succeed(n.TB, n.API.Get(n.Context(), client.ObjectKey{Name: NodeName}, object))
	base := object.DeepCopy()
	object.Annotations = v1.PodNetwork{
		Allocated: true, Addresses: JoinIPs[:n.Families], MAC: net.HardwareAddr{0x02, 0, 0, 0, 0x64, 2}, CIDRs: JoinCIDRs[:n.Families],
		Gateways: JoinGWs[:n.Families], LogicalSwitch: "join", LogicalRouter: "ovn-cluster",
	}.Annotations()
	must.Succeed(n.TB, n.API.Patch(n.Context(), object, client.MergeFrom(base)))
}

// Record writes the own addresses of the node to the IP object of its port, as the controller would.
func (n *Node) Record(own ...netip.Addr) {
	n.Helper()
	ip := &v1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: v1.NodePortName(NodeName), Labels: map[string]string{v1.LabelSubnet: v1.JoinSubnet}},
		Spec:       v1.IPSpec{Subnet: v1.JoinSubnet, NodeName: NodeName, IPAddress: ipfamily.Join(JoinIPs[:n.Families])},
	}
	must.Succeed(n.TB, client.IgnoreAlreadyExists(n.API.Create(n.Context(), ip)))
	must.Succeed(n.TB, n.API.Get(n.Context(), client.ObjectKeyFromObject(ip), ip))
	base := ip.DeepCopy()
	ip.Annotations = map[string]string{v1.AnnotationNodeAddresses.Key(): ipfamily.Join(own)}
	must.Succeed(n.TB, n.API.Patch(n.Context(), ip, client.MergeFrom(base)))
}

// StartAgent starts the agent as a process of its own, because tests kill it and start it again. It does not wait until the agent is ready.
func (n *Node) StartAgent() {
	n.Helper()
	self, err := os.Executable()
	must.Succeed(n.TB, err)
	own := n.Options
	own.OVSSocket = cmp.Or(n.relay, own.OVSSocket)
	options, err := json.Marshal(own)
	must.Succeed(n.TB, err)
	command := exec.Command(self)
	command.Env = append(os.Environ(), envAgent+"="+string(options), envConfig+"="+kubeconfig)
	n.Agent = daemontest.Start(n.Root, "the agent", filepath.Join(n.dir, "agent.log"), command).HidesToken(token)
}

// UseTool makes the next agent install a kubectl plugin with the returned content.
func (n *Node) UseTool() string {
	n.Helper()
	const content = "#!/bin/sh\n"
	n.Options.ToolSource, n.Options.ToolingDir = filepath.Join(n.dir, "tool"), filepath.Join(n.dir, "tools")
	must.Succeed(n.TB, errors.Join(os.WriteFile(n.Options.ToolSource, []byte(content), 0o755), os.Mkdir(n.Options.ToolingDir, 0o755)))
	return content
}

// Serving returns a node whose agent is ready to attach pods.
func Serving(t testing.TB) *Node {
	t.Helper()
	n := NewNode(t)
	n.Register()
	n.Allocate()
	n.StartAgent()
	n.WaitReady()
	return n
}

// WaitReady waits until the agent is ready and its socket accepts connections.
func (n *Node) WaitReady() {
	n.Helper()
	n.Eventually("the agent is ready", func() bool { return n.Health("/readyz") == http.StatusOK })
	n.Eventually("the plugin reaches the agent", func() bool {
		connection, err := net.Dial("unix", n.Options.CNISocket)
		return err == nil && connection.Close() == nil
	})
}

// Health returns the HTTP status of a path of the agent's health server; 0 if the agent does not serve.
func (n *Node) Health(path string) int {
	answer, err := http.Get("http://" + HealthAddress + path)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

// Metric returns the current value of one of the agent's metrics.
func (n *Node) Metric(name string) *dto.MetricFamily {
	n.Helper()
	answer, err := http.Get("http://" + HealthAddress + "/metrics")
	must.Succeed(n.TB, err)
	defer answer.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	must.Succeed(n.TB, err)
	return families[name]
}

// Conflist returns the content that the runtime reads; nil if the agent has not installed it.
func (n *Node) Conflist() []byte {
	content, _ := os.ReadFile(filepath.Join(n.Options.CNIConfDir, host.ConfigName(n.Options.CNIConfPriority)))
	return content
}

// NetworkUnavailable returns the node's condition NetworkUnavailable; nil if it has none.
func (n *Node) NetworkUnavailable() *corev1.NodeCondition {
	n.Helper()
	object := &corev1.Node{}
	must.Succeed(n.TB, n.API.Get(n.Context(), client.ObjectKey{Name: NodeName}, object))
	for i := range object.Status.Conditions {
		if object.Status.Conditions[i].Type == corev1.NodeNetworkUnavailable {
			return &object.Status.Conditions[i]
		}
	}
	return nil
}

// Eventually waits for an event in another process.
func (n *Node) Eventually(what string, holds func() bool) {
	n.Helper()
	eventually.Wait{For: what, Limit: Patience}.Holds(n, holds)
}
