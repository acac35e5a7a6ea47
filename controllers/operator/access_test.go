// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/controllers/operator/render"
)

// right is "<verb> <resource>[.<group>][/<subresource>] [@<namespace>] [<name>]"; own stands for the namespace of the components.
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

// noComponentMay lists rights by which a component could read keys, become someone else, or run programs of its choice.
var noComponentMay = []right{
	"get secrets @own", "list secrets @own", "watch secrets @own", "get secrets @default", "list secrets",
	"create serviceaccounts/token @own", "impersonate users", "impersonate serviceaccounts @own", "impersonate groups",
	"create pods @own", "create pods/exec @own", "create pods/exec @default", "update pods/ephemeralcontainers @default", "get nodes/proxy", "create nodes/proxy",
	"patch daemonsets.apps @own", "patch deployments.apps @own", "patch statefulsets.apps @own", "create jobs.batch @own",
	"create clusterroles.rbac.authorization.k8s.io", "escalate clusterroles.rbac.authorization.k8s.io", "bind clusterroles.rbac.authorization.k8s.io",
	"patch clusterrolebindings.rbac.authorization.k8s.io", "create rolebindings.rbac.authorization.k8s.io @own",
	"update certificatesigningrequests.certificates.k8s.io/approval", "approve signers.certificates.k8s.io", "sign signers.certificates.k8s.io",
	"update certificatesigningrequests.certificates.k8s.io/status",
	"patch ovnclusters.kubeovn.io", "update ovnclusters.kubeovn.io/status", "delete ovnclusters.kubeovn.io",
	"patch customresourcedefinitions.apiextensions.k8s.io", "create validatingwebhookconfigurations.admissionregistration.k8s.io",
	"create mutatingwebhookconfigurations.admissionregistration.k8s.io", "patch validatingadmissionpolicies.admissionregistration.k8s.io",
	"delete nodes", "create nodes", "delete namespaces", "create namespaces", "patch configmaps @own", "create configmaps @own",
	"delete pods @default", "create networkpolicies.networking.k8s.io @default", "delete networkpolicies.networking.k8s.io @default",
}

// TestWhatServiceAccountsMayNotDo asks a real API server, with the rendered roles and those of config/rbac.
func TestWhatServiceAccountsMayNotDo(t *testing.T) {
	w := &theWorld
	for _, o := range render.AccessObjects(render.Config{Namespace: testNamespace}) {
		if err := w.admin.Create(t.Context(), o.(client.Object)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.admin.Delete(context.Background(), o.(client.Object)); client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		})
	}
	accounts := map[string]bool{}
	for _, c := range []struct {
		account string
		may     []right // so that a review that always refuses is seen
		not     []right
	}{
		{"kiln-operator", []right{
			"get secrets @own kiln-ca-admin", "delete clusterroles.rbac.authorization.k8s.io kiln:kube-ovn-cni",
			"patch validatingadmissionpolicies.admissionregistration.k8s.io kiln-pod-networks", "delete pods @own", "approve signers.certificates.k8s.io kubeovn.io/chassis", "create clusterroles.rbac.authorization.k8s.io",
		}, []right{
			"get secrets @own", "patch secrets @own bootstrap-token-a", "delete secrets @own bootstrap-token-a",
			"delete clusterroles.rbac.authorization.k8s.io cluster-admin", "patch clusterrolebindings.rbac.authorization.k8s.io cluster-admin",
			"delete clusterroles.rbac.authorization.k8s.io kiln-operator", "patch roles.rbac.authorization.k8s.io @own kiln-operator",
			"delete rolebindings.rbac.authorization.k8s.io @own system::leader-locking-kube-scheduler",
			"delete validatingadmissionpolicies.admissionregistration.k8s.io kiln-ovncluster-removal",
			"get secrets @default", "list secrets", "create pods @own", "delete pods @default", "create pods/exec @own", "get nodes/proxy", "delete nodes",
			"escalate clusterroles.rbac.authorization.k8s.io", "bind clusterroles.rbac.authorization.k8s.io", "escalate roles.rbac.authorization.k8s.io @own",
			"impersonate users", "impersonate serviceaccounts @own", "create serviceaccounts/token @own",
			"create roles.rbac.authorization.k8s.io @default", "patch deployments.apps @default", "get certificates.cert-manager.io @default",
			"sign signers.certificates.k8s.io kubernetes.io/kube-apiserver-client", "approve signers.certificates.k8s.io kubernetes.io/kubelet-serving",
			"patch customresourcedefinitions.apiextensions.k8s.io", "delete namespaces", "delete ovnclusters.kubeovn.io",
		}},
		{render.OpenVSwitchAccount, []right{"create certificatesigningrequests.certificates.k8s.io", "get nodes"}, []right{
			"list nodes", "patch nodes", "patch nodes/status", "list pods", "patch pods @own", "write podnetworks.kubeovn.io", "get services @default", "list subnets.kubeovn.io", "patch ips.kubeovn.io",
			"patch leases.coordination.k8s.io @own", "delete certificatesigningrequests.certificates.k8s.io",
		}},
		{render.ControllerName, []right{"patch pods/status @default", "write podnetworks.kubeovn.io", "create subnets.kubeovn.io", "update leases.coordination.k8s.io @own"}, []right{
			"patch nodes/status", "patch networkpolicies.networking.k8s.io @default", "patch security-groups.kubeovn.io", "delete switch-lb-rules.kubeovn.io",
			"create ovn-eips.kubeovn.io", "delete ovn-eips.kubeovn.io", "update leases.coordination.k8s.io @default", "create leases.coordination.k8s.io @kube-node-lease",
			"patch statefulsets.apps @default", "patch pods @default", "patch pods @own", "update pods/status @default", "get configmaps @own", "get events @default",
		}},
		{render.AgentName, []right{"list pods", "patch nodes/status", "patch leases.coordination.k8s.io @own", "list subnets.kubeovn.io"}, []right{
			"patch pods @default", "patch pods @own", "patch pods/status @default", "write podnetworks.kubeovn.io", "patch nodes", "update nodes", "patch subnets.kubeovn.io", "patch ips.kubeovn.io",
			"delete ips.kubeovn.io", "patch services @default", "patch endpointslices.discovery.k8s.io @default", "list namespaces", "list ovnclusters.kubeovn.io",
			"patch leases.coordination.k8s.io @kube-node-lease", "patch leases.coordination.k8s.io @default", "delete leases.coordination.k8s.io @own",
			"list leases.coordination.k8s.io @own", "create certificatesigningrequests.certificates.k8s.io", "create events @default",
		}},
		{"ovn-central", []right{"patch pods/status @own", "list ovnclusters.kubeovn.io"}, []right{
			"patch pods @default", "patch pods/status @default", "list pods", "patch pods @own", "write podnetworks.kubeovn.io", "list nodes", "get nodes", "patch nodes", "list services", "list subnets.kubeovn.io",
			"patch leases.coordination.k8s.io @own", "create certificatesigningrequests.certificates.k8s.io",
		}},
	} {
		accounts[c.account] = true
		t.Run(c.account, func(t *testing.T) {
			not := c.not
			if c.account != "kiln-operator" {
				not = append(not, noComponentMay...)
			}
			w.reviews(t, c.account, c.may, not)
		})
	}
	for _, o := range render.AccessObjects(render.Config{Namespace: testNamespace}) {
		if a, isAccount := o.(*corev1.ServiceAccount); isAccount && !accounts[a.Name] {
			t.Errorf("ServiceAccount %s is not in this test", a.Name)
		}
	}
}

// reviews asks until what an account may do is granted, since the authorizer follows roles by a watch, and then for what it may not do.
func (w *world) reviews(t *testing.T, account string, may, not []right) {
	t.Helper()
	c, err := kubernetes.NewForConfig(w.config)
	if err != nil {
		t.Fatal(err)
	}
	allowed := func(r right) bool {
		review, err := c.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				ResourceAttributes: r.attributes(testNamespace), User: "system:serviceaccount:" + testNamespace + ":" + account,
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + testNamespace, "system:authenticated"},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return review.Status.Allowed
	}
	for _, r := range may {
		for deadline := time.Now().Add(time.Minute); !allowed(r); <-time.After(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("it may not %s, which it needs", r)
			}
		}
	}
	for _, r := range not {
		if allowed(r) {
			t.Errorf("it may %s", r)
		}
	}
}

// TestTheOperatorsRoleNamesWhatItOwns compares the names in config/rbac/role.yaml with those of the objects that the operator applies.
func TestTheOperatorsRoleNamesWhatItOwns(t *testing.T) {
	named := map[string][]string{}
	content, err := os.ReadFile(filepath.Join("..", "..", "config", "rbac", "role.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var role rbacv1.ClusterRole // or a Role, which has the same rules
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				named[resource] = append(named[resource], rule.ResourceNames...)
			}
		}
	}
	c := render.Config{Namespace: testNamespace}
	want := map[string][]string{}
	for _, o := range slices.Concat(render.AccessObjects(c), render.Policies(c)) {
		kind := strings.TrimPrefix(fmt.Sprintf("%T", o), "*v1.")
		plural := strings.ToLower(kind) + "s"
		if kind == "ValidatingAdmissionPolicy" {
			plural = "validatingadmissionpolicies"
		}
		want[plural] = append(want[plural], o.GetName())
	}
	delete(want, "serviceaccounts")
	for _, credential := range append(slices.Clone(credentials), backupsCredential) {
		want["secrets"] = append(want["secrets"], credential.secret)
	}
	for _, name := range authorities {
		want["secrets"] = append(want["secrets"], authoritySecretPrefix+name, issuedPrefix+name)
	}
	for resource, names := range want {
		slices.Sort(names)
		slices.Sort(named[resource])
		if diff := cmp.Diff(names, named[resource]); diff != "" {
			t.Errorf("%s (-applied +named):\n%s", resource, diff)
		}
	}
}
