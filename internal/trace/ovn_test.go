// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1alpha1 "sigs.k8s.io/network-policy-api/apis/v1alpha1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/gate"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/seed"
)

func TestMain(m *testing.M) { os.Exit(eventually.Main(m)) }

// ovn is an ovn-northd with the rows of one situation at a time.
type ovn struct {
	*testing.T
	server *nbtest.Server
	northd *nbtest.Northd
	engine *northbound.Engine
	// applied are the owners with rows.
	applied map[desired.Owner]bool
}

func newOVN(t *testing.T) *ovn {
	t.Helper()
	server := nbtest.Start(t)
	o := &ovn{T: t, server: server, northd: server.Northd(), applied: map[desired.Owner]bool{}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	session, err := ovsdbclient.Northbound(ctx, ovsdbclient.Options{Endpoints: []string{server.Endpoint()}, Log: logr.Discard()})
	must.Succeed(t, err)
	o.engine, err = northbound.New(session, logr.Discard())
	must.Succeed(t, err)
	life, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := o.engine.Start(life); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		end()
		running.Wait()
		session.Close()
	})
	must.Succeed(t, o.engine.Lead(ctx))
	return o
}

// apply makes rows the only ones, and waits until ovn-northd has computed their flows.
func (o *ovn) apply(rows map[desired.Owner][]desired.Row) {
	o.Helper()
	todo := slices.Collect(maps.Keys(rows))
	for owner := range o.applied {
		if rows[owner] == nil {
			todo = append(todo, owner)
		}
	}
	o.applied = map[desired.Owner]bool{}
	for owner := range rows {
		o.applied[owner] = true
	}
	for len(todo) > 0 { // rows wait for the rows of others to which they refer, and removed rows for the removal of these
		var waiting []desired.Owner
		for _, owner := range todo {
			err := o.engine.Apply(o.Context(), owner, rows[owner])
			if errors.Is(err, northbound.ErrWaiting) || err != nil && rows[owner] == nil {
				waiting = append(waiting, owner)
				continue
			}
			must.Succeed(o, err)
		}
		if len(waiting) == len(todo) {
			o.Fatalf("%v wait for rows of no owner: %v", waiting, o.engine.Apply(o.Context(), waiting[0], rows[waiting[0]]))
		}
		todo = waiting
	}
	o.northd.Settled()
	o.learn()
}

// learn adds the hardware addresses of neighbouring routers and nodes, which ovn-controller learns from their answers.
func (o *ovn) learn() {
	o.Helper()
	o.northd.Southbound.Transact(nbtest.Op{"op": "delete", "table": "MAC_Binding", "where": []any{}})
	datapaths := map[string]string{}
	for _, row := range o.northd.Southbound.Rows("Port_Binding") {
		datapaths[row["logical_port"].(string)] = row["datapath"].(string)
	}
	type neighbour struct{ ip, mac string }
	var all []neighbour
	ports := o.server.Rows("Logical_Router_Port")
	for _, row := range ports {
		for _, network := range row.Strings("networks") {
			all = append(all, neighbour{netip.MustParsePrefix(network).Addr().String(), row["mac"].(string)})
		}
	}
	for _, row := range o.server.Rows("Logical_Switch_Port") {
		for _, address := range row.Strings("addresses") {
			if parts := strings.Fields(address); strings.HasPrefix(row["name"].(string), kubeovnv1.NodePortName("")) {
				for _, ip := range parts[1:] {
					all = append(all, neighbour{ip, parts[0]})
				}
			}
		}
	}
	for i, router := range []string{"192.0.2.254", "2001:db8:2::fe", "198.51.100.254", "2001:db8:3::fe"} { // of external subnets
		all = append(all, neighbour{router, fmt.Sprintf("02:00:00:02:00:%02x", i+1)})
	}
	var inserts []nbtest.Op
	for _, row := range ports {
		known := map[string]bool{}
		for _, n := range all { // a router looks up those in its networks only
			if name := row["name"].(string); n.mac != row["mac"] && !known[n.ip] {
				known[n.ip] = true
				inserts = append(inserts, nbtest.Op{"op": "insert", "table": "MAC_Binding", "row": map[string]any{
					"logical_port": name, "ip": n.ip, "mac": n.mac, "datapath": nbtest.UUID(datapaths[name]), "timestamp": time.Now().UnixMilli(),
				}})
			}
		}
	}
	o.northd.Southbound.Transact(inserts...)
}

// rowsOf answers a question, and returns the rows on which the answer depends.
func rowsOf(c *cluster, q Query) (Answer, map[desired.Owner][]desired.Row) {
	rows := map[desired.Owner][]desired.Row{}
	macs := map[string]string{}
	distinct := func(name, text string) string { // rows of stage one have one hardware address for all nodes
		if macs[name] == "" {
			macs[name] = fmt.Sprintf("02:00:00:01:00:%02x", len(macs))
		}
		return strings.Replace(text, anyMAC.String(), macs[name], 1)
	}
	c.observe = func(owner desired.Owner, of []desired.Row) {
		for _, row := range of {
			switch r := row.Model.(type) {
			case *nb.LogicalSwitchPort:
				for i := range r.Addresses {
					r.Addresses[i] = distinct(r.Name, r.Addresses[i])
				}
			case *nb.LogicalRouterPort:
				r.MAC = distinct(r.Name, r.MAC)
			}
		}
		rows[owner] = of
	}
	defer func() { c.observe = nil }()
	s := c.Snapshot
	s.policies = newModel(&s)
	all := &walk{s: &s, from: host{kind: outside}, to: host{kind: outside}}
	all.load()
	for _, v := range c.Vpcs { // also those that the packet does not reach
		all.network(v.Name)
	}
	a := Run(&c.Snapshot, q)
	for _, v := range c.Vpcs {
		rows[translate.ProtectionOwner(v.Name)] = translate.Protection(v.Name, v1alpha1.ControlPlaneProtection{})
	}
	return a, rows
}

// passes sends the packet of a query with ovn-trace. It reports whether the packet leaves OVN at a port.
func (o *ovn) passes(c *cluster, q Query, family, outport string) (passes bool, output string) {
	o.Helper()
	packets, err := Packets(&c.Snapshot, q)
	must.Succeed(o, err)
	for _, p := range packets {
		if p.Family == family {
			arguments := p.Arguments()
			last := len(arguments) - 2
			output = o.northd.Trace(arguments[last], arguments[last+1], arguments[:last]...)
			return strings.Contains(output, `output("`+outport+`")`), p.Match + "\n" + output
		}
	}
	o.Fatalf("no packet of %s", family)
	return false, ""
}

// outport is the port at which a packet leaves OVN if it is delivered.
func (c *cluster) outport(t Trace, from, to host) string {
	if v := c.Snapshot.vpc(from.net.LogicalRouter); v.Status.Transit != nil && to.net.LogicalRouter != v.Name {
		return kubeovnv1.NodePortName(v.Status.Transit.Node)
	}
	for _, step := range t.Steps {
		if _, node, found := strings.Cut(step.Text, "selects the pod: the packet leaves through node "); found {
			node, _, _ = strings.Cut(node, " ")
			return kubeovnv1.NodePortName(node)
		}
		if _, subnet, found := strings.Cut(step.Text, "sends it out by external subnet "); found && !strings.HasPrefix(t.Steps[len(t.Steps)-1].Text, "the packet reaches") {
			return translate.LocalnetPort(subnet)
		}
	}
	for _, pod := range c.Pods {
		if strings.HasPrefix(t.Steps[len(t.Steps)-1].Text, fmt.Sprintf("the packet reaches pod %s/%s (", pod.Namespace, pod.Name)) {
			return kubeovnv1.PortOf(pod, kubeovnv1.ProviderOVN).Name
		}
	}
	if to.kind == aPod {
		return to.port()
	}
	if s := c.subnet(from.net.LogicalSwitch); s.Status.ActivateGateway != "" {
		return kubeovnv1.NodePortName(s.Status.ActivateGateway)
	}
	return kubeovnv1.NodePortName(from.node)
}

// compare compares the answer to a question with ovn-trace, for each of the families.
func (o *ovn) compare(t *testing.T, c *cluster, q Query, families ...ipfamily.Family) (compared int) {
	t.Helper()
	a, rows := rowsOf(c, q)
	o.apply(rows)
	for _, got := range a.Traces {
		if !slices.Contains(families, familyOf(got.Source)) {
			continue
		}
		from, problem := c.host(q.From, familyOf(got.Source), "")
		if problem != nil || from.kind != aPod || got.Verdict == CannotTell {
			continue
		}
		to, problem := c.host(q.To, familyOf(got.Source), from.net.LogicalRouter)
		if problem != nil || to.kind == aNode {
			continue
		}
		compared++
		reached := to
		if len(got.Endpoints) > 0 {
			reached = c.hostAt(netip.MustParseAddrPort(got.Endpoints[0].Address).Addr(), from.net.LogicalRouter)
		}
		passes, output := o.passes(c, q, got.Family, c.outport(got, from, reached))
		if passes && to.kind == aPod && len(got.Endpoints) == 0 {
			reply := q
			reply.From, reply.To, reply.Answer, reply.SourceAddress, reply.SourceMAC = podEnd(to.pod.Namespace, to.pod.Name), q.From, true, netip.Addr{}, nil
			back, answer := o.passes(c, reply, got.Family, from.port())
			passes, output = back, output+"\nanswer:\n"+answer
		}
		if passes != (got.Verdict == Delivered) {
			t.Errorf("%s: %s, ovn-trace: passes %t\n%s\n%s", got.Family, got.Verdict, passes, a.text(), output)
		}
	}
	return compared
}

// TestAnswersToRandomPolicies compares the answers of stage one with ovn-trace for random pods, subnets, policies, groups and rules of subnets.
func TestAnswersToRandomPolicies(t *testing.T) { answersToRandomPolicies(t, 4) }

func TestAnswersToManyRandomPolicies(t *testing.T) {
	gate.Skip(t, gate.Long)
	answersToRandomPolicies(t, 60)
}

func answersToRandomPolicies(t *testing.T, histories int) {
	t.Helper()
	o := newOVN(t)
	verdicts := map[Verdict]int{}
	seed.Histories(t, nil, histories, func(t *testing.T, _ uint64, r *rand.Rand) {
		c := randomCluster(r)
		for range 3 {
			from, to := c.Pods[r.IntN(len(c.Pods))], c.Pods[r.IntN(len(c.Pods))]
			if from == to {
				continue
			}
			q := tcp(podEnd(from.Namespace, from.Name), podEnd(to.Namespace, to.Name), []uint16{80, 81, 443}[r.IntN(3)])
			if r.IntN(4) == 0 {
				q.Protocol, q.Port = ICMP, 0
			}
			o.compare(t, c, q, both...)
			a := Run(&c.Snapshot, q)
			verdicts[a.Verdict]++
		}
	})
	if verdicts[CannotTell] > 0 {
		t.Errorf("answers without a verdict although everything is readable: %v", verdicts)
	}
}

// randomCluster has pods in two namespaces and two subnets, with random policies of all kinds.
func randomCluster(r *rand.Rand) *cluster {
	c := newCluster()
	other := c.newSubnet("other", "10.20.0.0/24,fd00:10:20::/112", kubeovnv1.SubnetSpec{Private: r.IntN(3) == 0})
	if r.IntN(2) == 0 {
		other.Spec.AllowSubnets = []string{"10.16.0.0/16"}
	}
	for _, at := range [][3]string{{"shop", "a", kubeovnv1.DefaultSubnet}, {"shop", "web", "other"}, {"bank", "b", kubeovnv1.DefaultSubnet}, {"bank", "db", "other"}} {
		c.run(at[0], at[1], []string{"n1", "n2"}[r.IntN(2)], at[2])
	}
	namespaces := []string{"shop", "bank"}
	for range r.IntN(4) {
		np := c.isolate(namespaces[r.IntN(2)], fmt.Sprint("np", len(c.Policies)), []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}[r.IntN(2)])
		if r.IntN(2) == 0 {
			np.Spec.PodSelector.MatchLabels = map[string]string{"app": c.Pods[r.IntN(4)].Name}
		}
		for range r.IntN(3) {
			peer, ports := randomPeer(c, r), randomPorts(r)
			if np.Spec.PolicyTypes[0] == networkingv1.PolicyTypeIngress {
				ingress(np, peer, ports...)
			} else {
				np.Spec.Egress = append(np.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: []networkingv1.NetworkPolicyPeer{peer}, Ports: ports})
			}
		}
	}
	if r.IntN(3) == 0 {
		anp := admin("first", []policyv1alpha1.AdminNetworkPolicyRuleAction{"Allow", "Deny", "Pass"}[r.IntN(3)])
		anp.Spec.Subject.Namespaces = &metav1.LabelSelector{MatchLabels: map[string]string{"name": namespaces[r.IntN(2)]}}
		c.Policies = append(c.Policies, anp)
	}
	if r.IntN(3) == 0 {
		for _, match := range []string{"tcp.dst == 80", "ip4", "ip6 && tcp"}[:1+r.IntN(3)] {
			c.Subnets[0].Spec.ACLs = append(c.Subnets[0].Spec.ACLs, kubeovnv1.ACL{
				Direction: []string{"to-lport", "from-lport"}[r.IntN(2)], Priority: 1000 + r.IntN(1200), Match: match, Action: []string{"drop", "allow-related"}[r.IntN(2)],
			})
		}
	}
	if r.IntN(3) == 0 {
		sg := c.group("sg", "shop", "bank")
		sg.Spec.AllowSameGroupTraffic = r.IntN(2) == 0
		for _, family := range []string{"ipv4", "ipv6"} {
			rule := kubeovnv1.SecurityGroupRule{
				IPVersion: family, Protocol: "tcp", Priority: 1 + r.IntN(20), RemoteType: kubeovnv1.RemoteAddress, PortRangeMin: 80, PortRangeMax: 81, Policy: "allow",
				RemoteAddress: map[string]string{"ipv4": "0.0.0.0/0", "ipv6": "::/0"}[family],
			}
			sg.Spec.IngressRules, sg.Spec.EgressRules = append(sg.Spec.IngressRules, rule), append(sg.Spec.EgressRules, rule)
		}
		for range 2 {
			c.Pods[r.IntN(4)].Annotations[kubeovnv1.AnnotationGroups.Key()] = "sg"
		}
	}
	return c
}

func randomPeer(c *cluster, r *rand.Rand) networkingv1.NetworkPolicyPeer {
	pod := c.Pods[r.IntN(4)]
	switch r.IntN(4) {
	case 0:
		return fromNamespace(pod.Namespace)
	case 1:
		return networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": pod.Name}}}
	case 2:
		return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "10.16.0.0/16", Except: []string{"10.16.0.10/32"}}}
	}
	peer := fromNamespace(pod.Namespace)
	peer.PodSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{pod.Name}}}}
	return peer
}

func randomPorts(r *rand.Rand) []networkingv1.NetworkPolicyPort {
	switch r.IntN(4) {
	case 0:
		return []networkingv1.NetworkPolicyPort{numbered(80)}
	case 1:
		return []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromString("http"))}, numbered(443)}
	case 2:
		port := numbered(81)
		port.EndPort = new(int32(500))
		return []networkingv1.NetworkPolicyPort{port}
	}
	return nil
}

// notOfOVN are the situations in which OVN does not decide: an endpoint of the connection has no address, no port, or no node.
var notOfOVN = map[string]string{
	"node without network":                                          "the tunnel ends at the node",
	"missing port in Open vSwitch":                                  "Open vSwitch of the node has no interface",
	"two VPCs with the same addresses":                              "ovn-trace follows the address in the VPC of the sender",
	"a pod that existed before its namespace was bound":             "the repair replaces the pod",
	"centralized gateway whose node is down":                        "the node does not forward",
	"address that no pod has":                                       "OVN asks for the address by ARP",
	"RouterLBRule without the port":                                 "the packet leaves the cluster, where nothing has the address",
	"a ping of the gateway":                                         "the router answers",
	"an underlay subnet whose node has no interface":                "the physical network is not OVN's",
	"a Service of nodes":                                            "nodes serve it",
	"Service without the port":                                      "nodes reject packets to unknown ports of Services",
	"ping to a Service":                                             "the same",
	"local policy inside":                                           "nodes serve such Services",
	"a Service with 100 endpoints":                                  "ovn-trace follows one of them",
	"an address that no Service has":                                "nodes reject packets to unknown addresses of Services",
	"an address that no Service has, with kube-proxy":               "the same",
	"an address that no Service has, from a custom VPC with access": "the same",
	"a port that a Service of nodes does not have":                  "nodes reject packets to unknown ports of Services",
	"a port that the Service does not have, from a custom VPC":      "the same",
	"an address of a linked VPC that a third one has, too":          "the test takes the pod of the third VPC for the destination",
	"from a pod of the default VPC to an OvnFip of another one":     "the packet goes through a node and the physical network",
	"from a pod of the default VPC to an OvnFip under a policy":     "the same",
}

var both = []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6}

// TestAnswersAreThoseOfOVN compares the answers of stage one with ovn-trace on the flows of a real ovn-northd, before and after the change that each
// answer names: before it for both families, after it for one of them.
func TestAnswersAreThoseOfOVN(t *testing.T) {
	answersOfOVN(t, func(i int) []ipfamily.Family { return both[i%2 : i%2+1] })
}

func TestAnswersAreThoseOfOVNInBothFamilies(t *testing.T) {
	gate.Skip(t, gate.Long)
	answersOfOVN(t, func(int) []ipfamily.Family { return both })
}

// answersOfOVN compares all answers. after returns the families to compare after the change.
func answersOfOVN(t *testing.T, after func(i int) []ipfamily.Family) {
	t.Helper()
	o := newOVN(t)
	cases := map[string]func() (*cluster, fault){}
	for name, make := range policyFaults {
		cases[name] = func() (*cluster, fault) {
			c := newCluster()
			c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
			c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
			return c, make(c, tcp(podEnd("shop", "a"), podEnd("bank", "b"), 80))
		}
	}
	for name, make := range networkFaults {
		if notOfOVN[name] == "" {
			cases[name] = func() (*cluster, fault) { c := newCluster(); return c, make(c) }
		}
	}
	for name, make := range allSituations() {
		if notOfOVN[name] == "" {
			cases[name] = func() (*cluster, fault) { c := newCluster(); return c, fault{query: make(c).query} }
		}
	}
	compared := 0
	for i, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) {
			c, f := cases[name]()
			if f.query.From.Pod.Name == "" || f.query.Protocol == Neighbour || f.query.Answer {
				t.Skip("no packet of a pod to an address")
			}
			before := o.compare(t, c, f.query, both...)
			if f.repair != nil {
				f.repair()
				before += o.compare(t, c, f.query, after(i)...)
			}
			compared += before
		})
	}
	if compared < 100 {
		t.Errorf("only %d packets were compared", compared)
	}
}
