// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

// The virtual resource and verb that authorise a writer of results on pods. They exist only for authorizers; the API
// serves no such resource.
const (
	podNetworksGroup    = "kubeovn.io"
	podNetworksResource = "podnetworks"
	podNetworksVerb     = "write"
)

// The virtual resource and verb that authorise, in a namespace, setting external IPs on Services.
const (
	externalIPsResource = "externalips"
	externalIPsVerb     = "use"
)

// Claims of a pod's token, which the API server puts into the request's userInfo.extra (Kubernetes 1.30 or newer).
const (
	claimPodUID   = "authentication.kubernetes.io/pod-uid"
	claimNodeName = "authentication.kubernetes.io/node-name"
)

// annotationPrefix is the prefix of the annotations of a pod's first network, and of the annotations of nodes and namespaces. anyPrefix stands for the
// prefixes of all networks of a pod.
const (
	annotationPrefix = kubeovnv1.ProviderOVN + kubeovnv1.AnnotationDomain + "/"
	anyPrefix        = "<provider>" + kubeovnv1.AnnotationDomain + "/"
)

// policy is a ValidatingAdmissionPolicy and its binding, whose action is Deny unless it warns. The failurePolicy is Fail unless it informs.
// Expressions with failurePolicy Fail must not fail: they read optional fields with `?`, lists are constants, and there are no regular expressions.
type policy struct {
	name, app  string
	group      string
	resources  []string
	others     []resources // besides group and resources
	operations []admissionv1.OperationType
	// when selects the requests that the policy validates.
	when        string
	variables   []admissionv1.Variable
	validations []admissionv1.Validation
	// informs is true if the policy protects nothing, or only from mistakes. Its failurePolicy is Ignore, so that an error in it affects no request.
	informs bool
	// warns is true if violations are warnings.
	warns bool
}

// resources are resources of a group.
type resources struct {
	group string
	names []string
}

// Policies returns the admission policies for rules that RBAC cannot express: which annotations of pods users may change,
// and which fields of which objects the components' ServiceAccounts may change.
func Policies(c Config) []Object {
	var objects []Object
	for _, p := range []policy{
		c.podNetworks(), podBindings(),
		c.podWrites("kiln-controller-pods", ControllerName, ControllerName, results(), []string{Northbound.WrittenLabel},
			[]string{string(v1alpha1.PodConditionNorthbound)}),
		c.podWrites("kiln-central-pods", centralAccount, centralApp, nil, []string{
			Northbound.LeaderLabel, Southbound.LeaderLabel, northdLeaderLabel, Southbound.WrittenLabel, northdMembersLabel,
		}, nil),
		c.controllerMetadata(), c.controllerServices(), c.controllerSlices(), c.controllerLeases(), c.controllerFinalizers(),
		c.nodeStatus(), c.gatewayLeases(), c.chassisRequests(), networkRemoval(), podRequests(), policySubjects(), c.advice(), c.adviceOnFields(),
	} {
		objects = append(objects, p.objects(c)...)
	}
	if c.Spec.Tenancy.ExternalIPs != v1alpha1.ExternalIPsOpen {
		objects = append(objects, externalIPs().objects(c)...)
	}
	if c.Spec.Speaker != nil {
		p := c.podWrites("kiln-speaker-pods", SpeakerName, SpeakerName, nil, nil, []string{string(v1alpha1.PodConditionPeers)})
		objects = append(objects, p.objects(c)...)
	}
	return objects
}

// podNetworks denies changes of results on pods, of any network: the CNI plugin connects a pod by the annotations of the provider in its configuration.
// It calls the authorizer last, and only if a result differs. It skips the writes of
// kube-ovn-controller, which may change all results: kiln-controller-pods validates them, and each policy costs the API server 0.25 ms per pod.
func (c Config) podNetworks() policy {
	always := kubeovnv1.AnnotationsOf(kubeovnv1.OnPod, kubeovnv1.RoleResult)
	claims := kubeovnv1.AnnotationsOf(kubeovnv1.OnPod, kubeovnv1.RoleClaim)
	before := func(a kubeovnv1.Annotation) string {
		return "variables.before[?(k.substring(0, k.lastIndexOf('/')) + '/" + string(a) + "')].orValue('')"
	}
	return policy{
		name: "kiln-pod-networks", app: ControllerName,
		resources: []string{"pods", "pods/*"}, operations: []admissionv1.OperationType{admissionv1.Update},
		when: "!(" + c.isAccount(ControllerName) + ") && object.metadata.?annotations != oldObject.metadata.?annotations",
		variables: append(beforeAndAfter("annotations", "before", "after"),
			admissionv1.Variable{Name: "changed", Expression: "variables.before.filter(k, variables.before[?k] != variables.after[?k])"},
			admissionv1.Variable{Name: "added", Expression: "variables.after.filter(k, !(k in variables.before))"},
			writer(),
		),
		validations: []admissionv1.Validation{
			forbid("!(variables.changed + variables.added).exists(k, "+ofAnyNetwork(always)+") || variables.writer",
				"only kube-ovn-controller changes these annotations of a pod: "+anyPrefix+names(always)+
					". Create the pod again to give it another network"),
			forbid("!(variables.changed + variables.added).exists(k, "+ofAnyNetwork(claims)+" && "+before(kubeovnv1.AnnotationAllocated)+" == 'true' && "+
				before(kubeovnv1.AnnotationPodUID)+" == oldObject.metadata.uid) || variables.writer",
				"only kube-ovn-controller changes these annotations of a pod whose network is allocated: "+anyPrefix+names(claims)+
					". Create the pod again with the values that you want"),
		},
	}
}

// podBindings denies results among the annotations of a Binding, which the API server copies to the pod.
func podBindings() policy {
	return policy{
		name: "kiln-pod-bindings", app: ControllerName,
		resources: []string{"pods/binding", "bindings"}, operations: []admissionv1.OperationType{admissionv1.Create},
		when:      "object.metadata.?annotations.hasValue()",
		variables: []admissionv1.Variable{writer()},
		validations: []admissionv1.Validation{forbid(
			"!object.metadata.annotations.exists(k, "+ofAnyNetwork(results())+") || variables.writer",
			"only kube-ovn-controller writes these annotations of a pod: "+anyPrefix+names(results())+". Remove them from the Binding",
		)},
	}
}

// ofAnyNetwork is true if k is the key of one of the annotations for any provider. A provider is a text of a CNI configuration, and a Binding may have keys
// that are not valid, so the beginning of the key does not matter.
func ofAnyNetwork(annotations []kubeovnv1.Annotation) string {
	if len(annotations) == 0 {
		return "false"
	}
	ends := make([]string, len(annotations))
	for i, a := range annotations {
		ends[i] = a.For("")
	}
	return celList(ends) + ".exists(end, k.endsWith(end))"
}

// externalIPs denies new external IPs of Services. A Service receives the traffic of all pods and nodes to its external IPs, even if an IP belongs
// to the pod of another tenant (CVE-2020-8554).
func externalIPs() policy {
	return policy{
		name: "kiln-service-addresses", app: ControllerName,
		resources: []string{"services"}, operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
		when: "object.?spec.?externalIPs.orValue([]).size() > 0",
		variables: []admissionv1.Variable{
			{Name: "before", Expression: "oldObject == null ? [] : oldObject.?spec.?externalIPs.orValue([])"},
			{Name: "user", Expression: fmt.Sprintf("authorizer.group('%s').resource('%s').namespace(request.namespace).check('%s').allowed()",
				podNetworksGroup, externalIPsResource, externalIPsVerb)},
		},
		validations: []admissionv1.Validation{forbid("object.spec.externalIPs.all(ip, ip in variables.before) || variables.user",
			"externalIPs divert the traffic of others to these addresses: they need the verb "+externalIPsVerb+" on "+externalIPsResource+"."+podNetworksGroup+
				" in the namespace. Use a load balancer, or ask an administrator for a Role (docs/operations/security.md)")},
	}
}

// podWrites limits an account to changing these annotations of pods, of any network, and these labels and conditions of the pod to which
// its token is bound. Roles allow `pods/status` only; the policy holds for `pods` as well.
func (c Config) podWrites(name, account, app string, annotations []kubeovnv1.Annotation, labels, conditions []string) policy {
	kept, added := onlyDifferIn("before", "after", ofAnyNetwork(annotations))
	return policy{
		name: name, app: app,
		resources: []string{"pods", "pods/*"}, operations: []admissionv1.OperationType{admissionv1.Update},
		when: c.isAccount(account),
		variables: slices.Concat(beforeAndAfter("annotations", "before", "after"), beforeAndAfter("labels", "labelsBefore", "labelsAfter"),
			statusBeforeAndAfter(), []admissionv1.Variable{
				extra(), {Name: "ownPod", Expression: "object.metadata.uid in variables.extra[?'" + claimPodUID + "'].orValue([])"},
			}),
		validations: []admissionv1.Validation{
			forbid("(request.?subResource.orValue('') == 'status' || object.spec == oldObject.spec) && ("+unchanged("status")+
				" || variables.ownPod && "+onlyConditionsDiffer(conditions)+") && "+sameMetadata("finalizers", "ownerReferences"),
				onPods(account, len(annotations)+len(labels), conditions)),
			forbid(kept, account+" may not change these annotations of pods"),
			forbid(added, account+" may not change these annotations of pods"),
			forbid("variables.labelsBefore == variables.labelsAfter || variables.ownPod && "+
				onlyDiffer("labelsBefore", "labelsAfter", "k in "+celList(labels)),
				labelsOnPods(account, labels)),
		},
	}
}

// onPods returns which parts of pods an account may change, for its error messages.
func onPods(account string, metadata int, conditions []string) string {
	own := strings.Join(conditions, ", ")
	switch {
	case metadata == 0:
		return account + " changes the condition " + own + " of its own pod, and nothing else of pods"
	case len(conditions) == 0:
		return account + " changes annotations and labels of pods, and nothing else of them"
	}
	return account + " changes annotations and labels of pods, and nothing else of them but, of its own, the condition " + own
}

func labelsOnPods(account string, labels []string) string {
	if len(labels) == 0 {
		return account + " may not change labels of pods"
	}
	return account + " changes labels of its own pod only, and only " + strings.Join(labels, ", ")
}

// controllerMetadata limits the changes that kube-ovn-controller makes to nodes and namespaces.
func (c Config) controllerMetadata() policy {
	return policy{
		name: "kiln-controller-metadata", app: ControllerName,
		resources: []string{"nodes", "nodes/*", "namespaces", "namespaces/*"}, operations: []admissionv1.OperationType{admissionv1.Update},
		when:      c.isAccount(ControllerName),
		variables: beforeAndAfter("annotations", "before", "after"),
		validations: []admissionv1.Validation{forbid(
			unchanged("spec")+" && "+unchanged("status")+" && "+sameMetadata("labels", "finalizers", "ownerReferences")+" && "+
				onlyDiffer("before", "after", "k.startsWith('"+annotationPrefix+"')"),
			ControllerName+" changes annotations "+annotationPrefix+"* of nodes and namespaces, and nothing else of them",
		)},
	}
}

// nodeStatus limits an agent to changing its two conditions of its own Node, and its reports about ProviderNetworks and ended connections.
func (c Config) nodeStatus() policy {
	own := []string{string(corev1.NodeNetworkUnavailable), string(v1alpha1.NodeConditionKubeProxy)}
	return policy{
		name: "kiln-node-status", app: AgentName,
		resources: []string{"nodes", "nodes/*"}, operations: []admissionv1.OperationType{admissionv1.Update},
		when: c.isAccount(AgentName),
		variables: slices.Concat(statusBeforeAndAfter(), beforeAndAfter("labels", "labelsBefore", "labelsAfter"),
			beforeAndAfter("annotations", "before", "after"), []admissionv1.Variable{extra()}),
		validations: []admissionv1.Validation{
			forbid("object.metadata.name in variables.extra[?'"+claimNodeName+"'].orValue([])", AgentName+" changes the status of its own node only"),
			forbid(sameMetadata("finalizers", "ownerReferences")+" && "+unchanged("spec")+" && "+onlyConditionsDiffer(own)+" && "+
				"(variables.labelsBefore == variables.labelsAfter || "+
				onlyDiffer("labelsBefore", "labelsAfter", ofProviders(kubeovnv1.ProviderReady, kubeovnv1.ProviderInterface, kubeovnv1.ProviderMTU, kubeovnv1.ProviderMoved))+") && "+
				"(variables.before == variables.after || "+onlyDiffer("before", "after", "(k == '"+kubeovnv1.AnnotationFlushed.Key()+"' || "+
				ofProviders(kubeovnv1.ProviderError, kubeovnv1.ProviderSilentGateways)+")")+")",
				fmt.Sprintf("%s changes the conditions %s and %s of a node, labels and annotations about ProviderNetworks, and the annotation %s, and nothing else of it", AgentName,
					corev1.NodeNetworkUnavailable, v1alpha1.NodeConditionKubeProxy, kubeovnv1.AnnotationFlushed.Key())),
		},
	}
}

// ofProviders is true if k is the key of a label or an annotation of nodes about any ProviderNetwork, with one of these names.
func ofProviders(names ...string) string {
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = "k.endsWith('" + kubeovnv1.ProviderKey("", name) + "')"
	}
	return "(" + strings.Join(keys, " || ") + ")"
}

// gatewayLeases limits an agent to the Lease of its own node. Other programs have Leases in the same namespace.
func (c Config) gatewayLeases() policy {
	return policy{
		name: "kiln-gateway-leases", app: AgentName, group: "coordination.k8s.io",
		resources: []string{"leases"}, operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
		when:      c.isAccount(AgentName),
		variables: []admissionv1.Variable{extra()},
		validations: []admissionv1.Validation{forbid(
			"variables.extra[?'"+claimNodeName+"'].orValue([]).exists(node, object.metadata.name == 'gateway-' + node)",
			AgentName+" writes the Lease gateway-<node> of its own node only",
		)},
	}
}

// chassisRequests limits ovs-ovn to requesting certificates of the signer whose approver checks the node.
func (c Config) chassisRequests() policy {
	return policy{
		name: "kiln-chassis-requests", app: openVSwitchApp, group: "certificates.k8s.io",
		resources: []string{"certificatesigningrequests"}, operations: []admissionv1.OperationType{admissionv1.Create},
		when: c.isAccount(OpenVSwitchAccount),
		validations: []admissionv1.Validation{forbid("object.spec.signerName == '"+ChassisSigner+"'",
			OpenVSwitchAccount+" requests certificates of the signer "+ChassisSigner+" only")},
	}
}

func (p policy) objects(c Config) []Object {
	meta := c.clusterMeta(p.name, p.app, p.app)
	failure, action := admissionv1.Fail, admissionv1.Deny
	if p.informs {
		failure = admissionv1.Ignore
	}
	if p.warns {
		action = admissionv1.Warn
	}
	var rules []admissionv1.NamedRuleWithOperations
	for _, r := range append([]resources{{p.group, p.resources}}, p.others...) {
		rules = append(rules, admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: p.operations, Rule: admissionv1.Rule{APIGroups: []string{r.group}, APIVersions: []string{"*"}, Resources: r.names},
		}})
	}
	return []Object{
		&admissionv1.ValidatingAdmissionPolicy{
			ObjectMeta: meta,
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				FailurePolicy:    &failure,
				MatchConstraints: &admissionv1.MatchResources{ResourceRules: rules},
				MatchConditions:  []admissionv1.MatchCondition{{Name: "concerned", Expression: p.when}},
				Variables:        p.variables,
				Validations:      p.validations,
			},
		},
		&admissionv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: meta,
			Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: p.name, ValidationActions: []admissionv1.ValidationAction{action}},
		},
	}
}

func (c Config) isAccount(account string) string {
	return fmt.Sprintf("request.userInfo.username == 'system:serviceaccount:%s:%s'", c.Namespace, account)
}

// writer is a variable that is true if the user may write results. The API server computes a variable when an expression first reads it.
func writer() admissionv1.Variable {
	return admissionv1.Variable{Name: "writer", Expression: fmt.Sprintf(
		"authorizer.group('%s').resource('%s').check('%s').allowed()", podNetworksGroup, podNetworksResource, podNetworksVerb)}
}

func extra() admissionv1.Variable {
	return admissionv1.Variable{Name: "extra", Expression: "request.userInfo.?extra.orValue({})"}
}

func forbid(expression, message string) admissionv1.Validation {
	return admissionv1.Validation{Expression: expression, Message: message, Reason: new(metav1.StatusReasonForbidden)}
}

// beforeAndAfter returns two variables with a map in the metadata of the old and of the new object.
func beforeAndAfter(field, before, after string) []admissionv1.Variable {
	return []admissionv1.Variable{
		{Name: before, Expression: "oldObject.metadata.?" + field + ".orValue({})"},
		{Name: after, Expression: "object.metadata.?" + field + ".orValue({})"},
	}
}

// statusBeforeAndAfter returns variables with the status and the conditions of the old and of the new object. The status
// is read as a map, so that fields of later Kubernetes versions are covered too.
func statusBeforeAndAfter() []admissionv1.Variable {
	return []admissionv1.Variable{
		{Name: "statusBefore", Expression: "has(oldObject.status) ? dyn(oldObject.status) : dyn({})"},
		{Name: "statusAfter", Expression: "has(object.status) ? dyn(object.status) : dyn({})"},
		{Name: "conditionsBefore", Expression: "oldObject.?status.?conditions.orValue([])"},
		{Name: "conditionsAfter", Expression: "object.?status.?conditions.orValue([])"},
	}
}

// onlyConditionsDiffer is true if the variables of statusBeforeAndAfter differ only in conditions of these types, and in other fields of the status.
func onlyConditionsDiffer(types []string, fields ...string) string {
	own := "c.type in " + celList(types)
	allowed := "k == 'conditions'"
	for _, field := range fields {
		allowed += " || k == '" + field + "'"
	}
	return onlyDiffer("statusBefore", "statusAfter", allowed) +
		" && variables.conditionsAfter.all(c, " + own + " || c in variables.conditionsBefore)" +
		" && variables.conditionsBefore.all(c, " + own + " || c in variables.conditionsAfter)"
}

// onlyDiffer is true if two map variables differ only in keys k for which allowed is true.
func onlyDiffer(before, after, allowed string) string {
	kept, added := onlyDifferIn(before, after, allowed)
	return kept + " && " + added
}

// onlyDifferIn returns onlyDiffer as two expressions: one for existing keys and one for new keys. For annotations of pods
// they are two validations: the API server ends an expression whose cost exceeds 1,000,000, and a user may write some
// 85,000 annotations.
func onlyDifferIn(before, after, allowed string) (kept, added string) {
	return fmt.Sprintf("variables.%s.all(k, variables.%s[?k] == variables.%s[?k] || %s)", before, before, after, allowed),
		fmt.Sprintf("variables.%s.all(k, k in variables.%s || %s)", after, before, allowed)
}

func unchanged(field string) string {
	return fmt.Sprintf("object.?%s == oldObject.?%s", field, field)
}

func sameMetadata(fields ...string) string {
	all := make([]string, len(fields))
	for i, field := range fields {
		all[i] = fmt.Sprintf("object.metadata.?%s == oldObject.metadata.?%s", field, field)
	}
	return strings.Join(all, " && ")
}

// results returns the annotations of a pod that kube-ovn-controller writes.
func results() []kubeovnv1.Annotation {
	return kubeovnv1.AnnotationsOf(kubeovnv1.OnPod, kubeovnv1.RoleResult, kubeovnv1.RoleClaim)
}

// names returns annotations without their prefix, for messages: {a,b}.
func names(annotations []kubeovnv1.Annotation) string {
	all := make([]string, len(annotations))
	for i, a := range annotations {
		all[i] = string(a)
	}
	return "{" + strings.Join(all, ",") + "}"
}

// celList returns a list of strings in CEL. The strings must not contain quotes.
func celList(all []string) string {
	if len(all) == 0 {
		return "[]"
	}
	return "['" + strings.Join(all, "', '") + "']"
}
