// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

// right is "<verb> <resource>[.<group>][/<subresource>] [@<namespace>] [<name>]". The namespace own is that of the
// components.
type right string

func (r right) attributes(own string) *authorizationv1.ResourceAttributes {
	fields := strings.Fields(string(r))
	a := &authorizationv1.ResourceAttributes{Verb: fields[0], Version: "*"}
	resource, subresource, _ := strings.Cut(fields[1], "/")
	a.Resource, a.Group, _ = strings.Cut(resource, ".")
	a.Subresource = subresource
	for _, field := range fields[2:] {
		namespace, isNamespace := strings.CutPrefix(field, "@")
		switch {
		case !isNamespace:
			a.Name = field
		case namespace == "own":
			a.Namespace = own
		default:
			a.Namespace = namespace
		}
	}
	return a
}

// noComponentMay lists rights that no component has.
var noComponentMay = []right{
	"get secrets @own", "list secrets @own", "watch secrets @own", "get secrets @default", "list secrets", "get nodes/proxy", "get pods/log @own",
}

// TestWhatServiceAccountsMayNotRead reviews access at a real API server with the rendered roles and the roles in
// config/rbac. TestStolenTokens tries writes.
func TestWhatServiceAccountsMayNotRead(t *testing.T) {
	w := &theWorld
	w.discard(t)
	for _, o := range render.AccessObjects(withSpeaker()) {
		if err := w.admin.Create(t.Context(), o.(client.Object)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.admin.Delete(context.Background(), o.(client.Object)); client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		})
	}
	for _, c := range []struct {
		account string
		may     []right // detects a review that always refuses
		not     []right
	}{
		{"kiln-operator", []right{
			"get secrets @own kiln-ca-admin", "list secrets @own kiln-ca-admin", "watch secrets @own kiln-tls-northd",
		}, []right{
			"get secrets @own", "list secrets @own", "watch secrets @own", "get secrets @own bootstrap-token-a", "get secrets @default", "list secrets",
			"get nodes/proxy", "get pods/log @own", "get certificates.cert-manager.io @default", "get configmaps @own other",
		}},
		{render.OpenVSwitchAccount, []right{"get nodes"}, []right{
			"list nodes", "list pods", "get services @default", "list subnets.kubeovn.io",
		}},
		{render.ControllerName, []right{"list pods", "list leases.coordination.k8s.io @own"}, []right{
			"get configmaps @own", "get events @default", "list leases.coordination.k8s.io @kube-node-lease",
		}},
		{render.AgentName, []right{"list pods", "list subnets.kubeovn.io", "watch ovnclusters.kubeovn.io"}, []right{
			"list namespaces", "list leases.coordination.k8s.io @own",
		}},
		{render.PingerName, []right{"list pods @own", "watch ovnclusters.kubeovn.io"}, []right{
			"list pods", "list nodes", "get nodes", "list services", "list subnets.kubeovn.io", "create pods @own", "create pods/exec @own",
		}},
		{render.SpeakerName, []right{"list pods", "list services", "list subnets.kubeovn.io", "watch egress-addresses.kubeovn.io", "list ovn-eips.kubeovn.io", "watch ovnclusters.kubeovn.io"}, []right{
			"patch egress-addresses.kubeovn.io", "patch ovn-eips.kubeovn.io",
			"list namespaces", "list secrets @own", "patch nodes/status", "create leases.coordination.k8s.io @own", "patch pods/status @default",
		}},
		{"ovn-central", []right{"list pods @own", "list ovnclusters.kubeovn.io"}, []right{
			"list pods", "list nodes", "get nodes", "list services", "list subnets.kubeovn.io",
		}},
	} {
		t.Run(c.account, func(t *testing.T) {
			not := c.not
			if c.account != "kiln-operator" {
				not = append(not, noComponentMay...)
			}
			w.reviews(t, c.account, c.may, not)
		})
	}
}

// reviews retries until the account has all rights in may, because the authorizer receives roles by a watch. Then it
// checks that the account has none of the rights in not.
func (w *world) reviews(t *testing.T, account string, may, not []right) {
	t.Helper()
	for _, r := range may {
		for deadline := time.Now().Add(time.Minute); !w.allowed(t, account, r); <-time.After(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("it may not %s, which it needs", r)
			}
		}
	}
	for _, r := range not {
		if w.allowed(t, account, r) {
			t.Errorf("it may %s", r)
		}
	}
}

// allowed reports whether a ServiceAccount of testNamespace has a right.
func (w *world) allowed(t *testing.T, account string, r right) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			ResourceAttributes: r.attributes(testNamespace), User: "system:serviceaccount:" + testNamespace + ":" + account,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + testNamespace, "system:authenticated"},
		},
	}
	if err := w.admin.Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

// withBackups returns a configuration with a claim for backups.
func withBackups() render.Config {
	c := render.Config{Namespace: testNamespace, Image: "kiln.local/kiln:test"}
	c.Spec.Central.Backup.PersistentVolumeClaim = &v1alpha1.BackupClaim{ClaimName: "backups"}
	return c
}

// withSpeaker returns a configuration with kube-ovn-speaker.
func withSpeaker() render.Config {
	return render.Config{Namespace: testNamespace, Spec: v1alpha1.OVNClusterSpec{Speaker: &v1alpha1.Speaker{ASN: 64512}}}
}

// rendered returns all objects that the operator renders, with every option that adds one.
func rendered(t *testing.T) []render.Object {
	t.Helper()
	c := withBackups()
	c.Spec.Pinger.Mode = v1alpha1.PingerEnabled
	c.Spec.Speaker = &v1alpha1.Speaker{ASN: 64512}
	all := slices.Concat(render.AccessObjects(c), render.Policies(c), render.DisruptionBudgets(c))
	for _, o := range render.Operands {
		objects := o.Objects(c)
		if len(objects) == 0 {
			t.Fatalf("operand %s is off: switch it on in this configuration", o.Name)
		}
		all = append(all, objects...)
	}
	return slices.Concat(all, render.MetricsServices(c), render.ServiceMonitors(c), render.PrometheusRules(c))
}

// operatorOwns returns the names of the objects that the operator applies and deletes, by resource in the form of grants.
func (w *world) operatorOwns(t *testing.T) map[string][]string {
	t.Helper()
	owns := map[string][]string{"configmaps @own": {render.TrustConfigMap, strictMark}}
	for _, o := range rendered(t) {
		gvk, err := apiutil.GVKForObject(o, w.admin.Scheme())
		if err != nil {
			t.Fatal(err)
		}
		plural, _ := meta.UnsafeGuessKindToResource(gvk)
		resource := strings.TrimSuffix(plural.GroupResource().String(), ".")
		if o.GetNamespace() != "" {
			resource += " @own"
		}
		owns[resource] = append(owns[resource], o.GetName())
	}
	owns["secrets @own"] = certs.SecretNames()
	for _, name := range certs.Authorities {
		owns["certificates.cert-manager.io @own"] = append(owns["certificates.cert-manager.io @own"], certs.IssuedPrefix+name)
	}
	return owns
}

// TestNoRoleIsAggregated checks that the default roles edit and admin do not get the right to write results.
func TestNoRoleIsAggregated(t *testing.T) {
	for _, o := range render.AccessObjects(withSpeaker()) {
		for key := range o.GetLabels() {
			if strings.HasPrefix(key, "rbac.authorization.k8s.io/") {
				t.Errorf("%T %s has label %s", o, o.GetName(), key)
			}
		}
	}
}
