// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/acllog"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/trace"
)

// dropsRun returns a run that has read the cluster.
func (w *world) dropsRun(kind, name string) (*dropsRun, *synchronized) {
	w.Helper()
	out := &synchronized{}
	p := &plugin{out: out, errOut: &synchronized{}, namespace: metav1.NamespaceSystem, objects: w.objects}
	r, err := p.newDropsRun(kind, name, textDrops(time.Minute))
	must.Succeed(w, err)
	r.watched, err = r.read(w.Context())
	must.Succeed(w, err)
	return r, out
}

// textDrops are the flags of a run with the format for people.
func textDrops(duration time.Duration) dropsFlags {
	o := dropsFlags{duration: duration}
	o.output.add(&cobra.Command{}, formatText)
	return o
}

// tcpDrop is a packet that an ACL drops.
func tcpDrop(acl string, toPort bool, source, destination string, port uint16) loggedPacket {
	return loggedPacket{acllog.Packet{
		ACL: acl, Verdict: "drop", ToPort: toPort, Protocol: "tcp", Source: netip.MustParseAddr(source), Destination: netip.MustParseAddr(destination), SourcePort: 40001, DestinationPort: port,
	}, "n1"}
}

// TestDropsHaveNames has pods of two VPCs with the same addresses, policies whose names are too long for ACLs, and a private subnet.
func TestDropsHaveNames(t *testing.T) {
	w := newWorld(t)
	w.network("shop", "bank")
	long := strings.Repeat("long-", 20)
	w.runPod("shop", "web", 5)
	w.runPod("bank", "db", 6)
	w.make(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "red"}})
	vault := strings.Repeat("vault-", 20) + "x"
	for name, spec := range map[string]kubeovnv1.SubnetSpec{
		"red-net": {Vpc: "red", CIDRBlock: "10.16.0.0/16"}, vault: {Vpc: "red", CIDRBlock: "10.20.0.0/16", Private: true},
	} {
		s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		w.make(s)
		s.Status.ValidatedSpec = &s.Spec
		must.Succeed(w, w.objects.Status().Update(w.Context(), s))
	}
	for i, of := range []struct{ pod, subnet, address, kind string }{
		{"twin", "red-net", "10.16.0.5", ""}, {"red-db", "red-net", "10.16.0.6", ""}, {"red-only", "red-net", "10.16.0.7", ""}, {"machine", "ovn-default", "10.16.0.8", kubeovnv1.PodTypeVirtualMachine},
	} {
		w.make(&kubeovnv1.IP{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("twin-", i)},
			Spec:       kubeovnv1.IPSpec{PodName: of.pod, Namespace: "bank", Subnet: of.subnet, IPAddress: of.address, V4IPAddress: of.address, PodType: of.kind},
		})
	}
	w.make(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "reserved"}, Spec: kubeovnv1.IPSpec{Subnet: "ovn-default", IPAddress: "10.16.0.10", V4IPAddress: "10.16.0.10"}})
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "sql"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 5432}}}}
	w.make(service)
	for _, name := range []string{"closed", long + "a", long + "b"} {
		np := w.isolate("shop", name)
		np.Spec.PolicyTypes = append(np.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		must.Succeed(w, w.objects.Update(t.Context(), np))
	}
	r, _ := w.dropsRun("pod", "shop/web")
	const ingress, egress, web = "np/closed.shop/ingress/default", "np/closed.shop/egress/default", "pod shop/web (10.16.0.5)"
	for name, tt := range map[string]struct {
		packet loggedPacket
		want   string // empty if it does not concern the pod
	}{
		"to the pod":                      {tcpDrop(ingress, true, "10.16.0.6", "10.16.0.5", 80), "pod bank/db (10.16.0.6) → " + web + "  tcp 80  dropped by NetworkPolicy shop/closed, ingress"},
		"from the pod":                    {tcpDrop(egress, false, "10.16.0.5", "10.16.0.6", 80), web + " → pod bank/db (10.16.0.6)  tcp 80  dropped by NetworkPolicy shop/closed, egress"},
		"to a Service":                    {tcpDrop(egress, false, "10.16.0.5", service.Spec.ClusterIP, 5432), web + " → Service bank/sql (" + service.Spec.ClusterIP + ")  tcp 5432  dropped by NetworkPolicy shop/closed, egress"},
		"to a virtual machine":            {tcpDrop(egress, false, "10.16.0.5", "10.16.0.8", 22), web + " → virtualMachine bank/machine (10.16.0.8)  tcp 22  dropped by NetworkPolicy shop/closed, egress"},
		"to a reserved address":           {tcpDrop(egress, false, "10.16.0.5", "10.16.0.10", 22), web + " → 10.16.0.10  tcp 22  dropped by NetworkPolicy shop/closed, egress"},
		"to an address of another VPC":    {tcpDrop(egress, false, "10.16.0.5", "10.16.0.7", 80), web + " → 10.16.0.7 (perhaps pod bank/red-only)  tcp 80  dropped by NetworkPolicy shop/closed, egress"},
		"from a host outside":             {tcpDrop(ingress, true, "198.51.100.1", "10.16.0.5", 80), "198.51.100.1 → " + web + "  tcp 80  dropped by NetworkPolicy shop/closed, ingress"},
		"IPv6":                            {tcpDrop(ingress, true, "fd00:10:16::6", "fd00:10:16::5", 80), "pod bank/db (fd00:10:16::6) → pod shop/web (fd00:10:16::5)  tcp 80  dropped by NetworkPolicy shop/closed, ingress"},
		"a fragment":                      {tcpDrop(ingress, true, "10.16.0.6", "10.16.0.5", 0), "pod bank/db (10.16.0.6) → " + web + "  tcp  dropped by NetworkPolicy shop/closed, ingress"},
		"a policy at the other end":       {tcpDrop("np/closed.bank/ingress/default", true, "10.16.0.5", "10.16.0.6", 80), web + " → pod bank/db (10.16.0.6)  tcp 80  dropped by NetworkPolicy bank/closed, ingress"},
		"a policy with a dot":             {tcpDrop("np/a.b.bank/ingress/default", true, "10.16.0.5", "10.16.0.6", 80), web + " → pod bank/db (10.16.0.6)  tcp 80  dropped by NetworkPolicy bank/a.b, ingress"},
		"two policies with one cut name":  {tcpDrop(("np/" + long)[:63], true, "10.16.0.6", "10.16.0.5", 80), "pod bank/db (10.16.0.6) → " + web + "  tcp 80  dropped by NetworkPolicy shop/" + long + "a, ingress or NetworkPolicy shop/" + long + "b, ingress"},
		"an unknown cut name":             {tcpDrop("np/"+strings.Repeat("x", 60), true, "10.16.0.6", "10.16.0.5", 80), "pod bank/db (10.16.0.6) → " + web + "  tcp 80  dropped by ACL np/" + strings.Repeat("x", 60)},
		"an ACL of another system":        {tcpDrop("a\x1b[2J\nb", true, "10.16.0.6", "10.16.0.5", 80), "pod bank/db (10.16.0.6) → " + web + "  tcp 80  dropped by ACL a?[2J?b"},
		"a private subnet of another VPC": {tcpDrop(vault[:63], true, "10.16.0.5", "10.20.0.9", 80), ""},
		"the same address, another VPC":   {tcpDrop("np/closed.bank/ingress/default", true, "10.16.0.6", "10.16.0.5", 80), ""},
		"the peer has the same address":   {tcpDrop("np/closed.bank/egress/default", false, "10.16.0.7", "10.16.0.5", 80), ""},
	} {
		d := r.describe(t.Context(), tt.packet)
		got := ""
		if d != nil {
			_, got, _ = strings.Cut(plain(d.line()), "  ")
		}
		if got != tt.want {
			t.Errorf("%s:\n%s, want\n%s", name, got, tt.want)
		}
	}
	subnet := &kubeovnv1.Subnet{}
	must.Succeed(t, w.objects.Get(t.Context(), client.ObjectKey{Name: "ovn-default"}, subnet))
	subnet.Spec.Private = true
	must.Succeed(t, w.objects.Update(t.Context(), subnet))
	subnet.Status.ValidatedSpec = &subnet.Spec
	must.Succeed(t, w.objects.Status().Update(t.Context(), subnet))
	r, _ = w.dropsRun("namespace", "shop")
	d := r.describe(t.Context(), tcpDrop("ovn-default", true, "198.51.100.1", "10.16.0.5", 80))
	if d == nil || !strings.HasSuffix(d.line(), "198.51.100.1 → "+web+"  tcp 80  dropped by Subnet ovn-default") {
		t.Errorf("%+v", d)
	}
}

// TestDropsAreBounded has packets to more ports than the report has places.
func TestDropsAreBounded(t *testing.T) {
	w := newWorld(t)
	w.network("shop")
	w.runPod("shop", "web", 5)
	r, out := w.dropsRun("pod", "shop/web")
	for port := range uint16(maxDrops + 7) {
		r.record(t.Context(), tcpDrop("np/closed.shop/ingress/default", true, "198.51.100.1", "10.16.0.5", port+1))
	}
	first := tcpDrop("np/closed.shop/ingress/default", true, "198.51.100.1", "10.16.0.5", 1)
	first.Time = time.Unix(1e9, 0)
	r.record(t.Context(), first)
	for range 3 { // ignored
		r.record(t.Context(), tcpDrop("np/closed.shop/ingress/default", true, "198.51.100.1", "10.16.0.9", 80))
	}
	if lines := strings.Count(out.String(), "\n"); lines != maxDrops {
		t.Errorf("%d lines", lines)
	}
	must.Succeed(t, r.write())
	_, table, _ := strings.Cut(out.String(), "PACKETS")
	rows := strings.Split(strings.TrimSpace(table), "\n")
	if len(rows) != 1+shownDrops+2 || !strings.HasPrefix(rows[1], "2 ") || rows[len(rows)-2] != fmt.Sprintf("%d more connections: see -o json", maxDrops-shownDrops) || rows[len(rows)-1] != "7 packets of more connections: name a pod" {
		t.Errorf("%d rows: %q … %q", len(rows), rows[:2], rows[len(rows)-2:])
	}
}

// TestManyPoliciesLeaveOthersTheirPlaces: a namespace with many policies cannot prevent that those of another one on the same node are annotated.
func TestManyPoliciesLeaveOthersTheirPlaces(t *testing.T) {
	var keys []trace.Object
	for i := range 2 * maxDropPolicies {
		keys = append(keys, trace.Object{Kind: "NetworkPolicy", Namespace: "a", Name: fmt.Sprintf("%03d", i)})
	}
	keys = append(keys, trace.Object{Kind: "NetworkPolicy", Namespace: "b", Name: "1"}, trace.Object{Kind: "NetworkPolicy", Namespace: "b", Name: "0"})
	if first := fmt.Sprint(inTurns(keys)[:5]); first != "[NetworkPolicy a/000 NetworkPolicy b/0 NetworkPolicy a/001 NetworkPolicy b/1 NetworkPolicy a/002]" {
		t.Errorf("the first ones are %s", first)
	}
}

// TestDropsFollowNewPods: a pod and its policy are created during the run, and the pod of Open vSwitch is replaced.
func TestDropsFollowNewPods(t *testing.T) {
	w := newWorld(t)
	w.network("shop")
	w.runPod("shop", "web", 5)
	k := w.serveLogs()
	renewals := make(chan time.Time)
	r := &dropsCommandRun{kubelet: k, out: &synchronized{}, notes: &synchronized{}}
	p := &plugin{out: r.out, errOut: r.notes, namespace: metav1.NamespaceSystem}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: w.kubeconfig}
	must.Succeed(t, p.connect(clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})))
	run, err := p.newDropsRun("ns", "shop", textDrops(time.Hour))
	must.Succeed(t, err)
	run.renewals = renewals
	r.start(run.run)
	r.prints(r.notes, "no policy that you may list selects these pods\n")
	w.runPod("shop", "new", 9)
	np := w.isolate("shop", "closed")
	line := dropLine("np/closed.shop/ingress/default", "to-lport", "10.16.0.5", "10.16.0.9", 80)
	k.lines <- dropLine("np/closed.shop/ingress/default", "to-lport", "198.51.100.1", "10.16.0.9", 79) // not a pod of the run yet
	k.lines <- "end"
	r.prints(r.notes, "drops on node n1 are missing for at most 1m0s: its pod has ended")
	renewals <- time.Time{}
	k.lines <- line
	r.prints(r.out, "pod shop/web (10.16.0.5) → pod shop/new (10.16.0.9)  tcp 80  dropped by NetworkPolicy shop/closed, ingress\n")
	r.prints(r.notes, "until the end: NetworkPolicy shop/closed\n")
	if w.logsUntil(np) == "" {
		t.Error("the new policy does not log")
	}
	np.Annotations = nil // as a tool that applies manifests again
	must.Succeed(t, w.objects.Update(t.Context(), np))
	renewals <- time.Time{}
	renewals <- time.Time{} // the first one is done
	if w.logsUntil(np) == "" {
		t.Error("the policy does not log again")
	}
	must.Succeed(t, r.interrupt())
	if until := w.logsUntil(np); until != "" {
		t.Errorf("after the end, the policy logs until %s", until)
	}
	if strings.Contains(r.out.String(), "tcp 79") {
		t.Errorf("%s", r.out)
	}
}
