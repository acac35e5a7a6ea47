// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// labelProxyName is the label of a Service that kube-proxy ignores.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// controllerServices limits kube-ovn-controller to creating, changing and deleting Services of load balancer rules. On
// other Services it may write the VPC annotation and the label for kube-proxy, and its condition. It writes the addresses of Services of type
// LoadBalancer with a class: other controllers serve the Services without one.
func (c Config) controllerServices() policy {
	metadataOnly := unchanged("spec") + " && (" + unchanged("status.?loadBalancer") + " || object.?spec.?type.orValue('') == 'LoadBalancer' && " +
		"object.?spec.?loadBalancerClass.hasValue()) && " + onlyConditionsDiffer([]string{kubeovnv1.ConditionAddressAssigned}, "loadBalancer") + " && " + sameMetadata("finalizers", "ownerReferences") + " && " +
		onlyDiffer("before", "after", "k == '"+kubeovnv1.AnnotationVpc.Key()+"'") + " && " +
		onlyDiffer("labelsBefore", "labelsAfter", "k == '"+labelProxyName+"'")
	return policy{
		name: "kiln-controller-services", app: ControllerName,
		resources: []string{"services", "services/*"}, operations: everyWrite(),
		when: c.isAccount(ControllerName),
		variables: slices.Concat(beforeAndAfter("annotations", "before", "after"), beforeAndAfter("labels", "labelsBefore", "labelsAfter"),
			statusBeforeAndAfter()),
		validations: []admissionv1.Validation{forbid(
			"("+beforeAndAfterAre(ofRule)+") || request.operation == 'UPDATE' && "+metadataOnly,
			ControllerName+" writes Services of SwitchLBRules and RouterLBRules; of others only the annotation "+kubeovnv1.AnnotationVpc.Key()+", the label "+
				labelProxyName+", the condition "+kubeovnv1.ConditionAddressAssigned+", and the addresses of load balancers with a class",
		)},
	}
}

// controllerSlices limits kube-ovn-controller to its own EndpointSlices of load balancer rules.
func (c Config) controllerSlices() policy {
	return policy{
		name: "kiln-controller-slices", app: ControllerName, group: discoveryv1.GroupName,
		resources: []string{"endpointslices"}, operations: everyWrite(),
		when: c.isAccount(ControllerName),
		validations: []admissionv1.Validation{forbid(
			beforeAndAfterAre(func(object string) string {
				label := func(key string) string { return fmt.Sprintf("%s.metadata.?labels[?'%s'].orValue('')", object, key) }
				return label(discoveryv1.LabelManagedBy) + " == '" + ControllerName + "' && " + namedByRule(label(discoveryv1.LabelServiceName))
			}),
			ControllerName+" writes its own EndpointSlices of SwitchLBRules and RouterLBRules only",
		)},
	}
}

// controllerFinalizers limits kube-ovn-controller to creating the default Vpc, OvnEips for ports of routers and rules of pods, to deleting such OvnEips and rules, and to
// changing finalizers, the status, and labels and annotations of Kube-OVN of objects whose specs only administrators write. It cannot mark another rule as one of a pod.
func (c Config) controllerFinalizers() policy {
	own := func(object string) string {
		return "request.resource.resource == 'ovn-eips' && " + object + ".?spec.?type.orValue('') == '" + kubeovnv1.OvnEipTypeLRP + "' || " +
			"request.resource.resource in ['ovn-fips', 'ovn-snat-rules'] && '" + kubeovnv1.PodOfRule + "' in " + object + ".metadata.?annotations.orValue({})"
	}
	const ours = "k.startsWith('" + annotationPrefix + "')"
	labelled := celList(kubeovnv1.Resources("", func(k *kubeovnv1.Kind) bool { return k.WritesLabels }))
	return policy{
		name: "kiln-controller-finalizers", app: ControllerName, group: kubeovnv1.GroupVersion.Group,
		resources:  kubeovnv1.Resources("", func(k *kubeovnv1.Kind) bool { return slices.Contains(k.ControllerWrites, "patch") && !k.WritesSpecs }),
		operations: everyWrite(),
		when:       c.isAccount(ControllerName),
		variables:  slices.Concat(beforeAndAfter("annotations", "before", "after"), beforeAndAfter("labels", "labelsBefore", "labelsAfter")),
		validations: []admissionv1.Validation{forbid(
			"request.operation == 'CREATE' ? request.resource.resource == 'vpcs' && object.metadata.name == '"+kubeovnv1.DefaultVpc+"' || "+own("object")+" : "+
				"request.operation == 'DELETE' ? "+own("oldObject")+" : "+
				unchanged("spec")+" && "+sameMetadata("ownerReferences")+" && (request.resource.resource in "+labelled+" ? "+
				onlyDiffer("before", "after", ours)+" && "+onlyDiffer("labelsBefore", "labelsAfter", ours)+" : "+sameMetadata("labels", "annotations")+")",
			ControllerName+" creates the Vpc "+kubeovnv1.DefaultVpc+", OvnEips of type "+kubeovnv1.OvnEipTypeLRP+", and OvnFips and OvnSnatRules with the annotation "+
				kubeovnv1.PodOfRule+" only, deletes such OvnEips and rules only, and changes only "+
				"finalizers and the status of other objects, and labels and annotations "+annotationPrefix+"* of OvnEips and their rules",
		)},
	}
}

// controllerLeases limits the Leases that kube-ovn-controller creates. Its role names the Lease that it updates.
func (c Config) controllerLeases() policy {
	return policy{
		name: "kiln-controller-leases", app: ControllerName, group: "coordination.k8s.io",
		resources: []string{"leases"}, operations: []admissionv1.OperationType{admissionv1.Create},
		when: c.isAccount(ControllerName),
		validations: []admissionv1.Validation{forbid("object.metadata.name == '"+ControllerName+"'",
			ControllerName+" creates the Lease "+ControllerName+" only")},
	}
}

func everyWrite() []admissionv1.OperationType {
	return []admissionv1.OperationType{admissionv1.Create, admissionv1.Update, admissionv1.Delete}
}

// beforeAndAfterAre is true if the expression holds for the old and for the new object; an object that does not exist is
// skipped.
func beforeAndAfterAre(are func(object string) string) string {
	return fmt.Sprintf("(request.operation == 'CREATE' || %s) && (request.operation == 'DELETE' || %s)", are("oldObject"), are("object"))
}

// ofRule is true for a Service of a load balancer rule.
func ofRule(service string) string {
	return namedByRule(service+".metadata.name") + " && " + service + ".metadata.?ownerReferences.orValue([]).exists(o, " +
		"o.?controller.orValue(false) && o.apiVersion == '" + kubeovnv1.GroupVersion.String() + "' && o.kind in " +
		celList([]string{"SwitchLBRule", "RouterLBRule"}) + ")"
}

// namedByRule is true for the name of a rule's Service (controllers/lbrule).
func namedByRule(name string) string {
	return fmt.Sprintf("(%[1]s.startsWith('slr-') || %[1]s.startsWith('rlr-'))", name)
}
