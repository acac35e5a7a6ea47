// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1/requesttest"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/k8s"
)

// tenancy holds the objects of tests of rights and policies: a tenant's namespace, pods of components with their tokens,
// and two nodes.
type tenancy struct {
	*world
	namespace string
	clients   map[string]client.Client
	// tokens are configurations of clients with the token of a component's pod, by its ServiceAccount.
	tokens map[string]*rest.Config
}

// trial is a write and a part of the message that denies it; empty if the write is allowed.
type trial struct {
	name   string
	as     string
	write  write
	denied string
}

// Accounts of the trials.
const (
	asTenant     = "a tenant with the role edit"
	asOwnAccount = "a ServiceAccount of the tenant's namespace"
	asImitation  = "a ServiceAccount of the tenant's namespace that is named as the controller's"
	asScheduler  = "a scheduler of the tenant"
	asKubelet    = "the kubelet of node-1"
	asAdmin      = "a cluster administrator"
	asController = "kube-ovn-controller"
	asNorthd     = "ovn-northd"
	asAgent      = "the agent of node-1"
	asVSwitch    = "ovs-ovn of node-1"
	asOperator   = "kiln-operator"
	asSpeaker    = "the speaker of node-1"
)

// try makes each write as a dry run, which passes through authorisation and admission.
func (w *tenancy) try(t *testing.T, trials []trial) {
	t.Helper()
	for _, c := range trials {
		t.Run(c.as+": "+c.name, func(t *testing.T) {
			err := c.write(t.Context(), client.NewDryRunClient(w.clients[c.as]))
			switch {
			case c.denied == "" && err != nil && !apierrors.IsAlreadyExists(err): // detected after admission
				t.Errorf("the write was refused: %v", err)
			case c.denied != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.denied)):
				t.Errorf("the write gave %v; want it forbidden with %q", err, c.denied)
			}
		})
	}
}

// newTenancy creates the objects of a test and waits until the API server enforces every policy.
// newTenancy makes the objects of a test, with those of others.
func newTenancy(t *testing.T, c render.Config, others ...client.Object) *tenancy {
	t.Helper()
	theWorld.discard(t)
	c.Spec.Speaker = &v1alpha1.Speaker{ASN: 64512}
	w := &tenancy{
		world: &theWorld, clients: map[string]client.Client{asAdmin: theWorld.admin}, tokens: map[string]*rest.Config{},
		namespace: strings.ToLower(t.Name()), // no controller here completes the deletion of a namespace
	}
	for _, o := range render.AccessObjects(c) {
		w.make(t, o.(client.Object))
	}
	for _, o := range others {
		w.make(t, o)
	}
	w.make(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}})
	for _, name := range []string{"node-1", "node-2"} {
		w.make(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		}})
	}
	for _, name := range []string{"edit", "own", render.ControllerName, "scheduler"} {
		w.make(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}})
		// No controller aggregates the role edit here, so its parts are granted.
		for _, part := range []string{"system:aggregate-to-edit", "system:aggregate-to-view"} {
			w.grant(t, part, name)
		}
	}
	w.make(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "tenant-scheduler"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{""}, Resources: []string{"pods/binding"}, Verbs: []string{"create"}},
	}})
	w.grant(t, "tenant-scheduler", "scheduler")
	w.make(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "kubelets"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:nodes"}},
	})
	w.makePods(t)
	w.identify(t)
	for _, o := range render.Policies(c) {
		w.make(t, o.(client.Object))
	}
	w.inForce(t)
	return w
}

func (w *tenancy) makePods(t *testing.T) {
	t.Helper()
	for _, p := range []struct{ namespace, name, account, node string }{
		{w.namespace, "web", "own", ""}, {w.namespace, "db", "own", "node-1"}, {w.namespace, "two", "own", "node-1"},
		{testNamespace, "controller-0", render.ControllerName, "node-1"}, {testNamespace, "northd-0", "ovn-central", "node-1"},
		{testNamespace, "agent-0", render.AgentName, "node-1"}, {testNamespace, "monitor-0", render.MonitorName, "node-1"},
		{testNamespace, "ovs-0", render.OpenVSwitchAccount, "node-1"}, {testNamespace, "speaker-0", render.SpeakerName, "node-1"},
		{testNamespace, "operator-0", "kiln-operator", "node-1"}, {testNamespace, "dns", "dns", "node-1"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: p.name, Labels: map[string]string{"app": p.name}}, Spec: containers()}
		pod.Spec.ServiceAccountName, pod.Spec.NodeName = p.account, p.node
		if p.namespace == testNamespace && p.account != p.name {
			pod.Labels[v1alpha1.PartOfLabel] = v1alpha1.PartOf
		}
		if p.namespace == w.namespace {
			pod.Annotations = map[string]string{kubeovnv1.AnnotationGroups.Key(): "of-the-user"}
		}
		w.make(t, pod)
		if provider := map[string]string{"db": kubeovnv1.ProviderOVN, "two": secondNetwork}[p.name]; provider != "" {
			base := pod.DeepCopy()
			network := kubeovnv1.PodNetwork{Provider: provider, UID: pod.UID, Allocated: true, LogicalSwitch: "blue", Machine: "m"}
			maps.Copy(pod.Annotations, network.Annotations())
			pod.Annotations[kubeovnv1.AnnotationIPAddress.For(provider)] = "10.16.0.8"
			if err := w.admin.Patch(t.Context(), pod, client.MergeFrom(base)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// identify creates the clients of all accounts, with tokens that the API server issues. The tenant impersonates its own
// accounts.
func (w *tenancy) identify(t *testing.T) {
	t.Helper()
	tenant := w.token(t, w.namespace, "edit", "")
	w.clients[asTenant] = w.client(t, tenant)
	for who, account := range map[string]string{asOwnAccount: "own", asImitation: render.ControllerName} {
		as := rest.CopyConfig(tenant)
		as.Impersonate.UserName = "system:serviceaccount:" + w.namespace + ":" + account
		w.clients[who] = w.client(t, as)
	}
	w.clients[asScheduler] = w.client(t, w.token(t, w.namespace, "scheduler", ""))
	kubelet := rest.CopyConfig(w.config)
	kubelet.Impersonate = rest.ImpersonationConfig{UserName: "system:node:node-1", Groups: []string{"system:nodes", "system:authenticated"}}
	w.clients[asKubelet] = w.client(t, kubelet)
	w.tokens[render.MonitorName] = w.token(t, testNamespace, render.MonitorName, "monitor-0")
	for who, of := range map[string]struct{ account, pod string }{
		asController: {render.ControllerName, "controller-0"}, asNorthd: {"ovn-central", "northd-0"},
		asAgent: {render.AgentName, "agent-0"}, asVSwitch: {render.OpenVSwitchAccount, "ovs-0"},
		asOperator: {"kiln-operator", "operator-0"}, asSpeaker: {render.SpeakerName, "speaker-0"},
	} {
		w.tokens[of.account] = w.token(t, testNamespace, of.account, of.pod)
		w.clients[who] = w.client(t, w.tokens[of.account])
	}
	w.tokens[render.PingerName] = w.token(t, testNamespace, render.PingerName, "")
	stolen := rest.CopyConfig(tenant)
	stolen.Impersonate.UserName = "system:serviceaccount:" + testNamespace + ":" + render.ControllerName
	err := w.patch("web", annotate("allocated", "true"))(t.Context(), w.client(t, stolen))
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "cannot impersonate") {
		t.Fatalf("a tenant impersonates kube-ovn-controller: %v", err)
	}
}

// inForce waits until the API server enforces roles and policies: then each policy denies a write. The API server loads
// bindings as late as policies.
func (w *tenancy) inForce(t *testing.T) {
	t.Helper()
	for _, c := range []struct {
		as    string
		write func(context.Context, client.Client) error
	}{
		{asScheduler, w.patchStatus("web", annotate("allocated", "true"))}, {asScheduler, w.bind("web", kubeovnv1.AnnotationAllocated.Key())},
		{asController, w.patchStatus("web", label("a", "b"))}, {asNorthd, w.patchStatus("kube-system/controller-0", label("a", "b"))},
		{asSpeaker, w.patchStatus("kube-system/speaker-0", label("a", "b"))},
		{asController, w.patchNode("node-1", label("a", "b"))}, {asAgent, w.nodeCondition("node-2", "a")}, {asAgent, w.create(lease("other"))},
		{asVSwitch, w.create(request(t, certificatesv1.KubeAPIServerClientSignerName))},
		{asController, w.create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: ports()})}, {asController, w.create(lease("other"))},
		{asController, w.create(slice(testNamespace, "other"))}, {asController, w.create(network("Vpc"))},
	} {
		w.denied(t, c.as, c.write)
	}
}

// denied waits until a policy denies a write.
func (w *tenancy) denied(t *testing.T, as string, write write) {
	t.Helper()
	for deadline := time.Now().Add(soon); ; <-time.After(often) {
		err := write(t.Context(), client.NewDryRunClient(w.clients[as]))
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no policy denies what %s writes: %v", as, err)
		}
	}
}

func (w *tenancy) make(t *testing.T, o client.Object) {
	t.Helper()
	status := o.DeepCopyObject().(client.Object)
	if err := w.admin.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if node, isNode := status.(*corev1.Node); isNode {
		node.ResourceVersion = o.GetResourceVersion()
		if err := w.admin.Status().Update(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := w.admin.Delete(context.Background(), o, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
}

func (w *tenancy) grant(t *testing.T, role, account string) {
	t.Helper()
	w.make(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: account + "-" + strings.TrimPrefix(role, "system:")},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.namespace, Name: account}},
	})
}

// token returns the configuration of a client with a token of the account, bound to a pod if one is named.
func (w *tenancy) token(t *testing.T, namespace, account, pod string) *rest.Config {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if pod != "" {
		bound := &corev1.Pod{}
		if err := w.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: pod}, bound); err != nil {
			t.Fatal(err)
		}
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod, UID: bound.UID}
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}
	if err := w.admin.SubResource("token").Create(t.Context(), sa, request); err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(w.config)
	config.BearerToken, config.QPS = request.Status.Token, -1
	return config
}

func (w *tenancy) client(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(config, client.Options{Scheme: w.admin.Scheme(), Mapper: w.admin.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

type write = func(context.Context, client.Client) error

// pod returns a pod in the tenant's namespace, or `<namespace>/<name>`.
func (w *tenancy) pod(name string) *corev1.Pod {
	namespace, name, other := strings.Cut(name, "/")
	if !other {
		namespace, name = w.namespace, namespace
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func (w *tenancy) patch(pod, patch string) write {
	return func(ctx context.Context, c client.Client) error {
		return c.Patch(ctx, w.pod(pod), client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
	}
}

func (w *tenancy) patchStatus(pod, patch string) write {
	return func(ctx context.Context, c client.Client) error {
		return c.Status().Patch(ctx, w.pod(pod), client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
	}
}

func (w *tenancy) update(name, annotation string) write {
	return func(ctx context.Context, c client.Client) error {
		pod := w.pod(name)
		if err := c.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		pod.Annotations[annotation] = "forged"
		return c.Update(ctx, pod)
	}
}

func (w *tenancy) bind(name, annotation string) write {
	return func(ctx context.Context, c client.Client) error {
		pod := w.pod(name)
		return c.SubResource("binding").Create(ctx, pod, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Annotations: map[string]string{annotation: "true"}},
			Target:     corev1.ObjectReference{Kind: "Node", Name: "node-1"},
		})
	}
}

// create creates an object. A pod goes into the tenant's namespace, and another object without a namespace into testNamespace.
func (w *tenancy) create(o client.Object) write {
	return func(ctx context.Context, c client.Client) error {
		o := o.DeepCopyObject().(client.Object)
		if _, isPod := o.(*corev1.Pod); o.GetNamespace() == "" && isPod {
			o.SetNamespace(w.namespace)
		} else if o.GetNamespace() == "" {
			o.SetNamespace(testNamespace)
		}
		return c.Create(ctx, o)
	}
}

func (w *tenancy) patchNode(name, patch string) write {
	return func(ctx context.Context, c client.Client) error {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		return c.Patch(ctx, node, client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
	}
}

func (w *tenancy) patchNodeStatus(name, patch string) write {
	return func(ctx context.Context, c client.Client) error {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		return c.Status().Patch(ctx, node, client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
	}
}

func (w *tenancy) nodeCondition(name, condition string) write {
	return w.patchNodeStatus(name, fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"False","reason":"a"}]}}`, condition))
}

func (w *tenancy) patchNamespace(patch string) write {
	return func(ctx context.Context, c client.Client) error {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
		return c.Patch(ctx, ns, client.RawPatch(types.MergePatchType, []byte(patch)))
	}
}

// secondNetwork is the provider of another network of a pod.
const secondNetwork = "net1.default.ovn"

func annotate(name kubeovnv1.Annotation, value string) string {
	return annotateFor(kubeovnv1.ProviderOVN, name, value)
}

func annotateFor(provider string, name kubeovnv1.Annotation, value string) string {
	return fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, name.For(provider), value)
}

// forged returns annotations with values that the parsers accept.
func forged(names ...kubeovnv1.Annotation) []string {
	values, all := requesttest.OfPods(), make([]string, len(names))
	for i, name := range names {
		value := "forged"
		if valid := values[string(name)].Valid; len(valid) > 0 {
			value = valid[0]
		}
		all[i] = fmt.Sprintf("%q:%q", name.Key(), value)
	}
	return all
}

func label(key, value string) string {
	return fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value)
}

func containers() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/image"}}}
}

func ports() corev1.ServiceSpec { return corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}} }

// slice returns an EndpointSlice of kube-ovn-controller for a Service.
func slice(namespace, service string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: service + "-ipv4-0",
		Labels: map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: k8s.EventRecorder},
	}}
}

func lease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func request(t *testing.T, signer string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{GenerateName: "policies-"}, Spec: certificatesv1.CertificateSigningRequestSpec{
		SignerName: signer, Request: encodeRequest(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "node-1"}}),
		Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
	}}
}

func podCondition(kind corev1.PodConditionType) string {
	return `{"status":{"conditions":[{"type":"` + string(kind) + `","status":"False"}]}}`
}
