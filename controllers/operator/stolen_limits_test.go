// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/workload"
)

// shop is a Service of a user, open a Service with an external IP, balanced a load balancer with a class, unclassed one without, and ofRule a Service of a SwitchLBRule.
const (
	shop      = "shop"
	open      = "open"
	ofRule    = "slr-rule"
	balanced  = "balanced"
	unclassed = "unclassed"
)

// service returns a Service in the tenant's namespace. If its name is ofRule, a rule owns it.
func (w *tenancy) service(name string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Spec: ports()}
	if name == ofRule {
		s.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: kubeovnv1.GroupVersion.String(), Kind: translate.KindSwitchLBRule, Name: "rule", UID: "1", Controller: new(true),
		}}
	}
	return s
}

// makeRules creates the objects that limited writes change.
func (w *tenancy) makeRules(t *testing.T) {
	t.Helper()
	for _, name := range []string{shop, ofRule} {
		w.make(t, w.service(name))
		w.make(t, slice(w.namespace, name))
	}
	withAddress := w.service(open)
	withAddress.Spec.ExternalIPs = []string{"192.0.2.1"}
	w.make(t, withAddress)
	withClass := w.service(balanced)
	withClass.Spec.Type, withClass.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, new("example.com/public")
	w.make(t, withClass)
	withoutClass := w.service(unclassed)
	withoutClass.Spec.Type = corev1.ServiceTypeLoadBalancer
	w.make(t, withoutClass)
	for _, kind := range []string{"Subnet", "Vpc", "IPPool", "OvnEip"} {
		w.make(t, network(kind))
	}
	w.make(t, eip("port", kubeovnv1.OvnEipTypeLRP))
	w.make(t, fip("stolen", false))
	w.make(t, fip("of-pod", true))
	w.make(t, request(t, certificatesv1.KubeAPIServerClientSignerName))
}

func eip(name, kind string) *unstructured.Unstructured {
	u := network("OvnEip")
	u.SetName(name)
	u.Object["spec"] = map[string]any{"type": kind}
	return u
}

// fip returns an OvnFip that an administrator made, or one that kube-ovn-controller makes for a pod.
func fip(name string, ofPod bool) *unstructured.Unstructured {
	u := network("OvnFip")
	u.SetName(name)
	u.Object["spec"] = map[string]any{"ovnEip": "stolen", "ipName": "a.shop"}
	if ofPod {
		u.SetAnnotations(map[string]string{kubeovnv1.PodOfRule: "shop/a"})
	}
	return u
}

// network returns an object of kubeovn.io.
func network(kind string) *unstructured.Unstructured {
	u := workload.Untyped(kubeovnv1.GroupVersion.WithKind(kind))
	u.SetName("stolen")
	u.Object["spec"] = map[string]any{}
	if kind == "IPPool" {
		u.Object["spec"] = map[string]any{"subnet": "stolen", "ips": []any{"10.16.0.9"}}
	}
	return u
}

// approve approves the request that makeRules creates, and fail ends it as its signer would.
func (w *tenancy) approve(ctx context.Context, c client.Client) error {
	return w.answer(ctx, c.SubResource("approval"), certificatesv1.CertificateApproved)
}

func (w *tenancy) fail(ctx context.Context, c client.Client) error {
	return w.answer(ctx, c.Status(), certificatesv1.CertificateFailed)
}

func (w *tenancy) answer(ctx context.Context, c client.SubResourceWriter, condition certificatesv1.RequestConditionType) error {
	var all certificatesv1.CertificateSigningRequestList
	if err := w.admin.List(ctx, &all, client.MatchingFields{"spec.signerName": certificatesv1.KubeAPIServerClientSignerName}); err != nil {
		return err
	}
	r := &all.Items[0]
	r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: condition, Status: corev1.ConditionTrue, Reason: "Stolen"}}
	return c.Update(ctx, r)
}

// change patches an object, and remove deletes it.
func change(o client.Object, patch string) write {
	return func(ctx context.Context, c client.Client) error {
		return c.Patch(ctx, o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(patch)))
	}
}

// statusOf patches the status of an object.
func statusOf(o client.Object, patch string) write {
	return func(ctx context.Context, c client.Client) error {
		return c.Status().Patch(ctx, o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(`{"status":`+patch+`}`)))
	}
}

func remove(o client.Object) write {
	return func(ctx context.Context, c client.Client) error {
		return c.Delete(ctx, o.DeepCopyObject().(client.Object))
	}
}

// servicesOfOthers returns writes of kube-ovn-controller to Services and EndpointSlices.
func (w *tenancy) servicesOfOthers() []trial {
	const services, slices = "writes Services of SwitchLBRules and RouterLBRules", "writes its own EndpointSlices"
	another, forged := w.service(ofRule), w.service(ofRule)
	another.Name, forged.Name = "slr-another", "forged"
	const rule = `{"apiVersion":"kubeovn.io/v1","kind":"SwitchLBRule","name":"a","uid":"1","controller":true}`
	const external = `{"spec":{"externalIPs":["192.0.2.1"]}}`
	const addressed = `{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}`
	conditioned := func(condition string) string {
		return `{"conditions":[{"type":"` + condition + `","status":"True","reason":"A","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}`
	}
	exposed := w.service("exposed")
	exposed.Spec.ExternalIPs = []string{"192.0.2.1"}
	const relabelled = `{"metadata":{"labels":{"` + discoveryv1.LabelServiceName + `":"` + shop + `"}}}`
	return []trial{
		{"a rule's Service", asController, w.create(another), ""},
		{"the ports of a rule's Service", asController, change(w.service(ofRule), `{"spec":{"selector":{"a":"b"}}}`), ""},
		{"the end of a rule's Service", asController, remove(w.service(ofRule)), ""},
		{"a rule's Service with an external IP", asController, change(w.service(ofRule), external), ""},
		{"an external IP", asTenant, change(w.service(shop), external), "externalIPs divert the traffic of others"},
		{"an external IP with a Service", asTenant, w.create(exposed), "externalIPs divert the traffic of others"},
		{"a port of a Service that has one", asTenant, change(w.service(open), `{"spec":{"selector":{"a":"b"}}}`), ""},
		{"an external IP more", asTenant, change(w.service(open), `{"spec":{"externalIPs":["192.0.2.1","192.0.2.2"]}}`), "externalIPs divert the traffic of others"},
		{"a Service without a rule", asController, w.create(w.service("nobodys")), services},
		{"a rule's Service of another name", asController, w.create(forged), services},
		{"which pods a Service selects", asController, change(w.service(shop), `{"spec":{"selector":{"a":"b"}}}`), services},
		{"the owner of a Service", asController, change(w.service(shop), `{"metadata":{"ownerReferences":[`+rule+`]}}`), services},
		{"a finalizer of a Service", asController, change(w.service(shop), `{"metadata":{"finalizers":["example.com/a"]}}`), services},
		{"the VPC of a Service", asController, change(w.service(shop), annotate(kubeovnv1.AnnotationVpc, "blue")), ""},
		{"a Service's mark for kube-proxy", asController, change(w.service(shop), label(translate.LabelProxyName, translate.ProxyOfVPCs)), ""},
		{"another annotation of a Service", asController, change(w.service(shop), annotate(kubeovnv1.AnnotationLogicalRouter, "blue")), services},
		{"another label of a Service", asController, change(w.service(shop), label("a", "b")), services},
		{"the end of a Service", asController, remove(w.service(shop)), services},
		{"an address of a load balancer", asController, statusOf(w.service(balanced), addressed), ""},
		{"an address of another load balancer", asController, statusOf(w.service(unclassed), addressed), services},
		{"the condition of a Service", asController, statusOf(w.service(shop), conditioned(kubeovnv1.ConditionAddressAssigned)), ""},
		{"another condition of a Service", asController, statusOf(w.service(shop), conditioned("Ready")), services},
		{"an address of a load balancer by a tenant", asTenant, statusOf(w.service(balanced), addressed), "forbidden"},
		{"endpoints of a rule", asController, w.create(slice(w.namespace, "rlr-rule")), ""},
		{"the end of a rule's endpoints", asController, remove(slice(w.namespace, ofRule)), ""},
		{"endpoints of a Service", asController, w.create(slice(w.namespace, "store")), slices},
		{"a change of a Service's endpoints", asController, change(slice(w.namespace, shop), label("a", "b")), slices},
		{"a rule's endpoints for a Service", asController, change(slice(w.namespace, ofRule), relabelled), slices},
		{"the end of a Service's endpoints", asController, remove(slice(w.namespace, shop)), slices},
	}
}

// specsOfOthers returns writes of kube-ovn-controller to objects whose specs only administrators write.
func (w *tenancy) specsOfOthers() []trial {
	const denied = "changes only finalizers and the status of other objects"
	named := func(kind, name string) *unstructured.Unstructured {
		u := network(kind)
		u.SetName(name)
		return u
	}
	trials := []trial{
		{"the default Vpc", asController, w.create(named("Vpc", kubeovnv1.DefaultVpc)), ""},
		{"another Vpc", asController, w.create(named("Vpc", "forged")), denied},
		{"the members of a Vpc", asController, change(network("Vpc"), `{"spec":{"allowedNamespaces":["*"]}}`), denied},
		{"the members of an IPPool", asController, change(network("IPPool"), `{"spec":{"allowedNamespaces":["*"]}}`), denied},
	}
	trials = append(trials,
		trial{"an OvnEip of a port", asController, w.create(eip("port-2", kubeovnv1.OvnEipTypeLRP)), ""},
		trial{"the end of an OvnEip of a port", asController, remove(eip("port", kubeovnv1.OvnEipTypeLRP)), ""},
		trial{"an OvnEip for rules", asController, w.create(eip("forged", kubeovnv1.OvnEipTypeNAT)), denied},
		trial{"the end of an OvnEip for rules", asController, remove(network("OvnEip")), denied},
		trial{"an OvnFip of a pod", asController, w.create(fip("of-pod-2", true)), ""},
		trial{"the end of an OvnFip of a pod", asController, remove(fip("of-pod", true)), ""},
		trial{"an OvnFip of an administrator", asController, w.create(fip("forged", false)), denied},
		trial{"the end of an OvnFip of an administrator", asController, remove(fip("stolen", false)), denied},
		trial{"an OvnFip of an administrator as one of a pod", asController, change(fip("stolen", false), `{"metadata":{"annotations":{"`+kubeovnv1.PodOfRule+`":"shop/a"}}}`), denied},
		trial{"the OvnEip of an OvnFip", asController, change(fip("stolen", false), `{"spec":{"ovnEip":"another"}}`), denied},
		trial{"a label of Kube-OVN of an OvnEip", asController, change(network("OvnEip"), label(kubeovnv1.LabelEipV4, "192.0.2.9")), ""},
	)
	for _, kind := range []string{"Vpc", "IPPool", "OvnEip"} {
		trials = append(trials,
			trial{"a finalizer of " + kind, asController, change(network(kind), `{"metadata":{"finalizers":["`+k8s.Finalizer+`"]}}`), ""},
			trial{"a label of " + kind, asController, change(network(kind), label("a", "b")), denied},
		)
	}
	return trials
}

func (w *tenancy) leasesOfOthers() []trial {
	return []trial{
		{"its own Lease", asController, w.create(lease(render.ControllerName)), ""},
		{"the Lease of the scheduler", asController, w.create(lease("kube-scheduler")), "creates the Lease kube-ovn-controller only"},
		{"the Lease of a gateway", asController, w.create(lease("gateway-node-1")), "creates the Lease kube-ovn-controller only"},
		{"the Lease of the scheduler", asOperator, w.create(lease("kube-scheduler")), "writes the Lease kiln-operator only"},
		{"the Lease of kube-ovn-controller", asOperator, w.create(lease(render.ControllerName)), "writes the Lease kiln-operator only"},
	}
}

// heldToGrant returns writes with rights that the operator holds only to grant them to components.
func (w *tenancy) heldToGrant(t *testing.T) []trial {
	const grants, pods, services = "only to grant it", "deletes pods of Kiln", "writes the Services of databases"
	nb := w.service("ovn-nb")
	nb.Namespace = testNamespace
	const others = "nothing else of objects of kubeovn.io"
	return []trial{
		{"a node", asOperator, w.patchNode("node-2", annotate("ip_address", "100.64.0.9")), grants},
		{"a node's status", asOperator, w.nodeCondition("node-2", string(corev1.NodeReady)), grants},
		{"a namespace", asOperator, w.patchNamespace(label("a", "b")), grants},
		{"a result on a pod", asOperator, w.patchStatus("web", annotate("allocated", "true")), pods},
		{"a label of a pod of Kiln", asOperator, w.patchStatus("kube-system/northd-0", label("a", "b")), pods},
		{"the end of a pod of Kiln", asOperator, remove(w.pod("kube-system/northd-0")), ""},
		{"the end of another pod", asOperator, remove(w.pod("kube-system/dns")), pods},
		{"a Service of its own", asOperator, w.create(nb), ""},
		{"a Service of a tenant", asOperator, change(w.service(shop), label("a", "b")), services},
		{"a Service of the same name elsewhere", asOperator, w.create(w.service("ovn-nb")), services},
		{"the end of a Service", asOperator, remove(w.service(shop)), services},
		{"endpoints", asOperator, w.create(slice(w.namespace, "rlr-rule")), grants},
		{"a certificate of a chassis", asOperator, w.create(request(t, render.ChassisSigner)), grants},
		{"a Vpc", asOperator, w.create(network("Vpc")), others},
		{"the finalizer of a Subnet", asOperator, change(network("Subnet"), `{"metadata":{"finalizers":["example.com/a"]}}`), ""},
		{"the permissions of a Subnet", asOperator, change(network("Subnet"), `{"spec":{"portSecurity":"Requested","allowedNamespaces":["*"]}}`), ""},
		{"the permissions of a Subnet, and another field", asOperator, change(network("Subnet"), `{"spec":{"portSecurity":"Requested","private":false}}`), others},
		{"the network of a Subnet", asOperator, change(network("Subnet"), `{"spec":{"natOutgoing":true}}`), others},
	}
}

// escalations returns writes with which the operator would give itself, or a program of its choice, more rights.
func (w *tenancy) escalations() []trial {
	const names = "of the names only that its role lets it patch"
	role := func(name string) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	return []trial{
		{"a role of another name", asOperator, w.create(role("stolen")), names},
		{"more in a role of its own", asOperator, change(role("kiln:ovs-ovn"), `{"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`),
			"attempting to grant RBAC permissions not currently held"},
		{"a Secret of another name", asOperator, w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "stolen"}}), names},
		{"a Secret of its own", asOperator, w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: render.BackupsSecret}}), ""},
		{"a Secret of a name that the API server makes", asOperator, w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "kiln-tls-"}}), names},
		{"an account of another name", asOperator, w.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "stolen"}}), names},
		{"the approval of another signer", asOperator, w.approve, "not permitted to approve requests with signerName"},
		{"the answer of another signer", asOperator, w.fail, "not permitted to sign requests with signerName"},
	}
}
