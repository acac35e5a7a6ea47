// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/controllertest/networktest"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/policy"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// world is a controllertest.World with helpers for tests of policies.
type world struct{ *controllertest.World }

// newWorld returns a world with a dual-stack subnet for all namespaces.
func newWorld(t *testing.T) world {
	w := world{controllertest.New(t)}
	w.Subnet("ovn-default", func(s *kubeovnv1.SubnetSpec) {
		s.Default, s.CIDRBlock = true, "10.16.0.0/16,fd00:10:16::/112"
	})
	w.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultVpc}, Spec: kubeovnv1.VpcSpec{DefaultSubnet: "ovn-default"}})
	return w
}

func (w world) start() *controllertest.Process { return w.startWith(false, nil) }

// startWith starts the controllers, with a clock. With ignore they ignore the policies of Kubernetes.
func (w world) startWith(ignore bool, now func() time.Time) *controllertest.Process {
	var pods *pod.Reconciler
	var policies *policy.Reconciler
	return w.Start(controllertest.Steps{
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			pods = networktest.Pods(p)
			policies = &policy.Reconciler{
				Client: p.Client, Northbound: p.Engine, Sets: p.Sets, Grants: p.Grants, Recorder: p.Recorder, Gate: p.Gate, Ignore: ignore, UnnamedDelay: 1, Now: now,
			}
			return p.Run(ctx, pods, policies)
		},
		Restore: func(ctx context.Context, p *controllertest.Process) error {
			return errors.Join(policies.Restore(ctx), pods.Restore(ctx, p.Manager.GetAPIReader()))
		},
	})
}

func (w world) namespace(name string, labels map[string]string) *corev1.Namespace {
	w.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := w.Client.Create(w.Context(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
		w.Fatal(err)
	}
	w.Get(ns)
	w.Change(ns, func() { ns.Labels = labels })
	return ns
}

// newPod returns a pod on n1 with named TCP ports, and labels in the form `app=web,tier=a`.
func newPod(namespace, name, labels string, ports ...corev1.ContainerPort) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "none", Ports: ports}}},
	}
	for pair := range strings.SplitSeq(labels, ",") {
		if key, value, ok := strings.Cut(pair, "="); ok {
			p.Labels[key] = value
		}
	}
	return p
}

// pod creates a pod and returns it once it is annotated.
func (w world) pod(namespace, name, labels string, ports ...corev1.ContainerPort) *corev1.Pod {
	w.Helper()
	p := newPod(namespace, name, labels, ports...)
	w.Create(p)
	w.allocated(p)
	return p
}

// allocated waits until a pod is annotated.
func (w world) allocated(p *corev1.Pod) {
	w.Helper()
	w.Eventually(func() string {
		w.Get(p)
		if p.Annotations[kubeovnv1.AnnotationAllocated.Key()] != "true" {
			return fmt.Sprintf("pod %s has %v", p.Name, p.Annotations)
		}
		return ""
	})
}

// v4 and v6 return the addresses of a pod.
func v4(p *corev1.Pod) string {
	return strings.Split(p.Annotations[kubeovnv1.AnnotationIPAddress.Key()], ",")[0]
}
func v6(p *corev1.Pod) string {
	return strings.Split(p.Annotations[kubeovnv1.AnnotationIPAddress.Key()], ",")[1]
}

// policyOf creates a NetworkPolicy with a spec in YAML.
func (w world) policyOf(namespace, name, spec string, annotations ...string) *networkingv1.NetworkPolicy {
	w.Helper()
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{}}}
	w.Must(yaml.UnmarshalStrict([]byte(spec), &np.Spec))
	for i := 0; i+1 < len(annotations); i += 2 {
		np.Annotations[kubeovnv1.Annotation(annotations[i]).Key()] = annotations[i+1]
	}
	w.Create(np)
	return np
}

// acls returns the ACLs of a policy by key. Names of sets in matches are replaced by the content of the sets.
func (w world) acls(owner string) map[string]string {
	w.Helper()
	out := map[string]string{}
	names := w.contents()
	for _, row := range w.Database.Rows("ACL") {
		ids := row["external_ids"].(map[string]string)
		if ids["kiln-owner"] != owner {
			continue
		}
		match := row["match"].(string)
		for name, content := range names {
			match = strings.ReplaceAll(match, name, content)
		}
		out[strings.TrimPrefix(ids["kiln-key"], "acl/")] = fmt.Sprintf("%v %s", row["action"], match)
	}
	return out
}

// contents returns the content of sets (names of ports, or addresses) by their names in matches.
func (w world) contents() map[string]string {
	ports := w.Database.Rows("Logical_Switch_Port")
	out := map[string]string{}
	for _, row := range w.Database.Rows("Port_Group") {
		var names []string
		for _, id := range row.Strings("ports") {
			if port, ok := ports[id]; ok {
				names = append(names, port["name"].(string))
			}
		}
		slices.Sort(names)
		out["@"+row["name"].(string)] = fmt.Sprint(names)
	}
	for _, row := range w.Database.Rows("Address_Set") {
		addresses := slices.Sorted(slices.Values(row.Strings("addresses")))
		out["$"+row["name"].(string)] = fmt.Sprint(addresses)
	}
	return out
}

// expect waits until a policy has exactly these ACLs.
func (w world) expect(np *networkingv1.NetworkPolicy, want map[string]string) {
	w.Helper()
	w.Eventually(func() string {
		have := w.acls("NetworkPolicy/" + np.Namespace + "/" + np.Name)
		if fmt.Sprint(have) != fmt.Sprint(want) {
			return fmt.Sprintf("policy %s has\n%s\nwant\n%s", np.Name, lines(have), lines(want))
		}
		return ""
	})
}

func lines(m map[string]string) string {
	var out []string
	for key, value := range m {
		out = append(out, "  "+key+": "+value)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// rows counts the rows of a table that belong to policies.
func (w world) rows(table string) int {
	w.Helper()
	n := 0
	for _, row := range w.Database.Rows(table) {
		owner := row["external_ids"].(map[string]string)["kiln-owner"]
		if strings.HasPrefix(owner, "PodSet/") || strings.HasPrefix(owner, "Isolation/") || strings.HasPrefix(owner, "NetworkPolicy/") ||
			strings.HasPrefix(owner, "SecurityGroup/") {
			n++
		}
	}
	return n
}
