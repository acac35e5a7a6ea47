// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/service"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// groupOf waits until the load balancers of a Service are all in the group of a VPC.
func groupOf(w *controllertest.World, service, vpc string) {
	w.Helper()
	w.Eventually(func() string {
		balancers := map[string]bool{}
		for uuid, row := range w.Database.Rows("Load_Balancer") {
			if strings.HasPrefix(row["name"].(string), "default/"+service+"/") {
				balancers[uuid] = true
			}
		}
		if len(balancers) == 0 {
			return "no load balancers"
		}
		want := translate.ServicesRef(vpc).UUID()
		for uuid, row := range w.Database.Rows("Load_Balancer_Group") {
			for _, member := range row.Strings("load_balancer") {
				if balancers[member] && uuid != want {
					return fmt.Sprintf("load balancers of %s are in group %s, not in the group of VPC %s", service, row["name"], vpc)
				}
				delete(balancers, member)
			}
		}
		if len(balancers) > 0 {
			return fmt.Sprintf("%d load balancers of %s are in no group", len(balancers), service)
		}
		return ""
	})
}

func newPod(name, vpc string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Annotations: map[string]string{kubeovnv1.AnnotationLogicalRouter.Key(): vpc},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

func TestServicesAreServedWhereTheirEndpointsAre(t *testing.T) {
	w := controllertest.New(t)
	w.Subnet("theirs", func(s *kubeovnv1.SubnetSpec) { s.Vpc, s.CIDRBlock = "tenant", "10.16.0.0/24" })
	first := w.Start(steps)
	w.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}, Spec: kubeovnv1.VpcSpec{Namespaces: []string{"default"}}})
	w.Create(newPod("tenant-0", "tenant"), newPod("ours-0", kubeovnv1.DefaultVpc))
	of := func(name string, pods ...string) *discoveryv1.EndpointSlice {
		s := newSlice(name, name+"-a", slices.Repeat([]string{"10.16.0.2"}, len(pods))...)
		for i, pod := range pods {
			s.Endpoints[i].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: pod}
		}
		return s
	}
	theirs, ours, named, labelled := newService("by-pods"), newService("by-our-pods"), newService("by-name"), newService("labelled")
	labelled.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "another", "team": "a"}
	named.Labels = map[string]string{"team": "a"}
	named.Annotations = map[string]string{"ovn.kubernetes.io/logical_router": "tenant"}
	slice := of("by-pods", "not-there", "tenant-0")
	w.Create(theirs, ours, named, labelled, of("labelled", "tenant-0"), slice, of("by-our-pods", "ours-0"), of("by-name", "ours-0"))
	groupOf(w, "by-pods", "tenant")
	groupOf(w, "by-our-pods", kubeovnv1.DefaultVpc)
	groupOf(w, "by-name", "tenant")
	written := func(s *corev1.Service, want string) {
		t.Helper()
		w.Eventually(func() string {
			w.Get(s)
			if got := s.Annotations["ovn.kubernetes.io/vpc"]; got != want {
				return fmt.Sprintf("annotation vpc of %s is %q, want %q", s.Name, got, want)
			}
			return ""
		})
	}
	written(theirs, "tenant") // for nodes, which do not know the pods of others
	written(ours, "")
	left := func(s *corev1.Service, want string) {
		t.Helper()
		w.Eventually(func() string {
			w.Get(s)
			if got := s.Labels["service.kubernetes.io/service-proxy-name"]; got != want {
				return fmt.Sprintf("the proxy of %s is %q, want %q", s.Name, got, want)
			}
			return ""
		})
	}
	left(theirs, "kiln-vpc") // kube-proxy would send to the pod that has the address in the default VPC
	left(named, "kiln-vpc")
	left(ours, "")
	written(labelled, "tenant")
	left(labelled, "another")
	for _, s := range []*corev1.Service{named, labelled} {
		if s.Labels["team"] != "a" {
			t.Errorf("Service %s has lost labels: %v", s.Name, s.Labels)
		}
	}

	w.Change(slice, func() { slice.Endpoints = nil })
	w.Change(slice, func() { slice.Endpoints = of("by-pods", "ours-0").Endpoints })
	groupOf(w, "by-pods", kubeovnv1.DefaultVpc)
	written(theirs, kubeovnv1.DefaultVpc)
	left(theirs, "")
	groupOf(w, "by-pods", kubeovnv1.DefaultVpc)
	first.Stop()
	w.Change(slice, func() { slice.Endpoints = of("by-pods", "tenant-0").Endpoints })
	second := w.Start(steps)
	groupOf(w, "by-pods", "tenant")
	groupOf(w, "by-our-pods", kubeovnv1.DefaultVpc)
	if n := second.Transactions(); n != 1 {
		t.Errorf("%d transactions for one Service that moved", n)
	}
}

// warned waits until there is one event of this reason, with this text, about a Service.
func warned(w *controllertest.World, s *corev1.Service, reason, text string) {
	w.Helper()
	w.Eventually(func() string {
		var list eventsv1.EventList
		w.Must(w.Client.List(w.Context(), &list, client.InNamespace("default")))
		var notes []string
		for _, e := range list.Items {
			if e.Regarding.UID == s.UID && e.Reason == reason && e.Type == corev1.EventTypeWarning {
				notes = append(notes, e.Note)
				if e.Series != nil {
					notes = append(notes, fmt.Sprintf("%d times", e.Series.Count))
				}
			}
		}
		if len(notes) != 1 || !strings.Contains(notes[0], text) {
			return fmt.Sprintf("events of reason %s: %q", reason, notes)
		}
		return ""
	})
}

func TestMissingVpcIsReported(t *testing.T) {
	w := controllertest.New(t)
	w.Start(steps)
	typo, good, odd := newService("typo"), newService("good"), newService("odd")
	odd.Annotations = map[string]string{kubeovnv1.AnnotationLogicalRouter.Key(): "a/../b"} // which the client refuses to request
	typo.Annotations = map[string]string{kubeovnv1.AnnotationLogicalRouter.Key(): "tenent"}
	good.Annotations = map[string]string{kubeovnv1.AnnotationLogicalRouter.Key(): kubeovnv1.DefaultVpc}
	w.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultVpc}}, good, typo, odd)
	w.Create(newSlice("typo", "typo-a", "10.16.0.2")) // which is no news
	warned(w, typo, service.ReasonVpcMissing, "annotation ovn.kubernetes.io/logical_router names Vpc tenent, which does not exist: create it")
	warned(w, odd, service.ReasonVpcMissing, "names Vpc a/../b, which does not exist")
	groupOf(w, "good", kubeovnv1.DefaultVpc)
	var list eventsv1.EventList
	w.Must(w.Client.List(w.Context(), &list, client.InNamespace("default")))
	for _, e := range list.Items {
		if e.Regarding.UID == good.UID && e.Reason == service.ReasonVpcMissing { // the API server has events of its own about Services
			t.Errorf("an event about a Service of a VPC that is there: %s", e.Note)
		}
	}
}

// A Service is served in those custom VPCs only that list its namespace, whatever its annotations and endpoints say, and as soon as they do.
func TestAServiceIsServedWhereItsNamespaceIsListed(t *testing.T) {
	w := controllertest.New(t)
	w.Subnet("blue-net", func(s *kubeovnv1.SubnetSpec) { s.Vpc, s.CIDRBlock = "blue", "10.16.0.0/24" })
	w.Start(steps)
	blue := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "blue"}, Spec: kubeovnv1.VpcSpec{Namespaces: []string{"member"}}}
	named, noted := newService("named"), newService("noted")
	named.Annotations = map[string]string{kubeovnv1.AnnotationLogicalRouter.Key(): "blue"}
	named.Spec.ExternalIPs = []string{"192.0.2.1"}
	noted.Annotations = map[string]string{kubeovnv1.AnnotationVpc.Key(): "blue"} // as the controller notes it
	w.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultVpc}}, blue, named, noted, newSlice("named", "named-a", "10.16.0.2"))
	for _, s := range []*corev1.Service{named, noted} {
		warned(w, s, service.ReasonVpcNotAllowed, "the Service is not served: VPC blue does not list namespace default: add it to namespaces or allowedNamespaces of the VPC")
	}
	member := newService("member") // younger than the Service that is denied, and at the same address
	member.Namespace, member.Spec.ExternalIPs = "member", []string{"192.0.2.1"}
	member.Annotations = map[string]string{kubeovnv1.AnnotationLogicalRouter.Key(): "blue"}
	w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "member"}}, member)
	w.Eventually(func() string {
		for _, row := range w.Database.Rows("Load_Balancer") {
			if row["name"] == "member/member/tcp" {
				if _, has := row["vips"].(map[string]string)["192.0.2.1:53"]; has {
					return ""
				}
			}
		}
		return "the Service of a namespace that is listed does not have its address"
	})
	served := newService("served")
	w.Create(served, newSlice("served", "served-a", "10.16.0.3"))
	vip := served.Spec.ClusterIP + ":53"
	balanced(w, "served", map[string]map[string]string{"tcp": {vip: "10.16.0.3:5353"}, "udp": {vip: "10.16.0.3:5353"}})
	balanced(w, "named", nil)
	balanced(w, "noted", nil)

	w.Change(blue, func() { blue.Spec.Namespaces = []string{"default"} })
	vips := map[string]string{named.Spec.ClusterIP + ":53": "10.16.0.2:5353", "192.0.2.1:53": "10.16.0.2:5353"} // it is the older one
	balanced(w, "named", map[string]map[string]string{"tcp": vips, "udp": vips})
	groupOf(w, "named", "blue")
	w.Change(blue, func() { blue.Spec.Namespaces = nil })
	balanced(w, "named", nil)
}

// Open vSwitch chooses the place of an endpoint in the list by the client's address, so an endpoint that stays keeps its place.
func TestEndpointsKeepTheirPlacesForClientsWithAffinity(t *testing.T) {
	w := controllertest.New(t)
	process := w.Start(steps)
	s := newService("sticky")
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	w.Create(s)
	serves := func(all string) {
		t.Helper()
		backends := map[string]string{s.Spec.ClusterIP + ":53": all}
		balanced(w, "sticky", map[string]map[string]string{"tcp": backends, "udp": backends})
	}
	first, third, second := newSlice("sticky", "sticky-a", "10.16.0.2"), newSlice("sticky", "sticky-b", "10.16.0.4"), newSlice("sticky", "sticky-c", "10.16.0.3")
	w.Create(third)
	serves("10.16.0.4:5353")
	w.Create(first)
	serves("10.16.0.4:5353,10.16.0.2:5353")
	for _, row := range w.Database.Rows("Load_Balancer") {
		if !strings.HasPrefix(row["name"].(string), "default/sticky/") {
			continue
		}
		fields, _ := row["selection_fields"].([]string)
		if _, timeout := row["options"].(map[string]string)["affinity_timeout"]; timeout || !slices.Equal(slices.Sorted(slices.Values(fields)), []string{"ip_src", "ipv6_src"}) {
			t.Errorf("clients are not distinguished by their addresses alone: %v", row)
		}
	}
	process.Stop()
	process = w.Start(steps)
	w.Create(second)
	serves("10.16.0.4:5353,10.16.0.2:5353,10.16.0.3:5353")
	w.Delete(third)
	serves("10.16.0.3:5353,10.16.0.2:5353")
	process.Stop()
}

// An endpoint's change is one transaction, however many endpoints and Services there are.
func TestOneEndpointOfAThousand(t *testing.T) {
	w := controllertest.New(t)
	process := w.Start(steps)
	for i := range 50 {
		other := newService(fmt.Sprintf("other-%d", i))
		w.Create(other)
		vips := map[string]string{other.Spec.ClusterIP + ":53": ""}
		balanced(w, other.Name, map[string]map[string]string{"tcp": vips, "udp": vips})
	}
	s := newService("large")
	w.Create(s)
	var last *discoveryv1.EndpointSlice
	for i := range 10 {
		var addresses []string
		for j := range 100 {
			addresses = append(addresses, fmt.Sprintf("10.16.%d.%d", i, j+2))
		}
		last = newSlice("large", fmt.Sprintf("large-%d", i), addresses...)
		w.Create(last)
	}
	endpoints := func(want int) {
		w.Helper()
		w.Eventually(func() string {
			total := 0
			for _, row := range w.Database.Rows("Load_Balancer") {
				if row["name"].(string) == "default/large/udp" {
					total = len(strings.Split(row["vips"].(map[string]string)[s.Spec.ClusterIP+":53"], ","))
				}
			}
			if total != want {
				return fmt.Sprintf("%d endpoints, want %d", total, want)
			}
			return ""
		})
	}
	endpoints(1000)
	before := process.Transactions()
	w.Change(last, func() { last.Endpoints = last.Endpoints[1:] })
	endpoints(999)
	if n := process.Transactions() - before; n != 1 {
		t.Errorf("%d transactions for one endpoint", n)
	}
}
