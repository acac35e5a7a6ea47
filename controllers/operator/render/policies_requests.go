// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

const podRequestsName = "kiln-pod-requests"

// kindsOfPods are the kinds of pods and of the workloads in workloads.
var kindsOfPods = []string{"Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"}

// workloads returns the resources of Kubernetes with a pod template, except ReplicationControllers.
func workloads() []resources {
	return []resources{{"apps", []string{"deployments", "statefulsets", "daemonsets", "replicasets"}}, {"batch", []string{"jobs", "cronjobs"}}}
}

// podRequest is a request of a pod without which kube-ovn-controller gives it no network, and what the policy checks of its value.
type podRequest struct {
	annotation kubeovnv1.Annotation
	// readable is an expression about v, the value without surrounding white space. It is true for all values that the parser of api/v1 accepts,
	// and for some that it does not.
	readable string
	want     string
}

// podRequestsChecked returns the requests that podRequests checks. Of the rest, such as DHCP options, only kube-ovn-controller reads the values.
func podRequestsChecked() []podRequest {
	return []podRequest{
		{kubeovnv1.AnnotationIPAddress, areAddresses("v") + " && " + differInFamily, onePerFamily},
		{kubeovnv1.AnnotationMACAddress, "v.matches('^([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}$|^([0-9a-fA-F]{4}[.]){2}[0-9a-fA-F]{4}$') && " +
			"v.matches('^.[02468aceACE]') && v.matches('[1-9a-fA-F]')", "write a unicast MAC address like 02:00:00:00:16:01"},
		{kubeovnv1.AnnotationLogicalSwitch, isName("v"), "write the name of a Subnet"},
		{kubeovnv1.AnnotationIPFamily, "v.lowerAscii() in ['ipv4', 'ipv6', 'dual']", "write ipv4 or ipv6"},
		{kubeovnv1.AnnotationIPPool, "[(v.contains(';') ? v.split(';') : v.split(',')).map(i, i.trim()).filter(i, i != '')].all(items, " +
			"items.all(i, " + areAddresses("i") + ") || !v.matches('[;:/ ]') && !items.exists(i, isIP(i)) && items.all(i, " + areAddresses("i") + " || " + isName("i") + "))",
			"write names of IPPools like a,b or addresses like 10.16.0.2,10.16.0.3 or 10.16.0.2,fd00::2;10.16.0.3,fd00::3"},
		{kubeovnv1.AnnotationVip, isName("v"), "write the name of a Vip"},
		{kubeovnv1.AnnotationRoutes, "v == 'null' || v.startsWith('[') && v.endsWith(']')", `write a JSON list like [{"dst":"192.168.0.0/16","gw":"10.16.0.2"}]`},
		{kubeovnv1.AnnotationDefaultRoute, isBoolean, "write true or false"},
		{kubeovnv1.AnnotationNorthGateway, areAddresses("v") + " && " + differInFamily, onePerFamily},
		{kubeovnv1.AnnotationPortVips, areAddresses("v"), "write addresses with commas between them"},
	}
}

const (
	onePerFamily = "write one address, or one of each family as in 10.16.0.9,fd00::9"
	// maxChecked is the maximum length of a value that is checked, in characters. It limits the time that one request can cost.
	maxChecked = 4096
	isBoolean  = "v in ['true', 'false']"
	// differInFamily is true for a list v of addresses unless it has more than two, or two of the same family. Only the text of an address of IPv6
	// has colons, and only that of IPv4 in IPv6, which means the IPv4 address, has ffff.
	differInFamily = "v.split(',').size() < 3 && v.split(',').filter(a, !a.contains(':')).size() < 2 && " +
		"v.split(',').filter(a, a.contains(':') && !a.lowerAscii().contains('ffff')).size() < 2"
)

// byControllers is true for requests of the controllers of Kubernetes and of kubelets: users see neither their warnings nor their denials.
const byControllers = "request.userInfo.username == 'system:kube-controller-manager' || " +
	"request.userInfo.?groups.orValue([]).exists(g, g in ['system:serviceaccounts:kube-system', 'system:nodes'])"

// areAddresses is true for a list of addresses with commas between them. isIP refuses zones and IPv4 in IPv6, which the parser accepts.
func areAddresses(list string) string {
	return list + ".split(',').map(a, a.trim()).all(a, isIP(a) || a.contains('%') || a.contains(':') && a.lowerAscii().contains('ffff'))"
}

// isName is true for the name of an object.
func isName(v string) string {
	return v + ".size() <= 253 && " + v + ".matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')"
}

// quoted returns an expression for the beginning of a text, in quotes and on one line.
func quoted(text string) string {
	return "strings.quote(" + text + ".size() > 100 ? " + text + ".substring(0, 100) + '...' : " + text + ")"
}

// podRequests denies pods and workloads with a request that kube-ovn-controller can never read: such a pod would wait for its network forever. It
// denies a value only when an object gets it, so that existing objects can be changed and restored, and not to the controllers of Kubernetes
// and kubelets: pods of existing workloads are created, and have an event.
func podRequests() policy {
	var keys, readable, wants []string
	for _, r := range podRequestsChecked() {
		key := celString(r.annotation.Key())
		keys = append(keys, r.annotation.Key())
		readable = append(readable, "k == "+key+" ? "+r.readable)
		wants = append(wants, key+": "+celString(r.want))
	}
	changed := celList(keys) + ".filter(k, k in %[1]s && (oldObject == null || %[1]s[?k] != " + annotationsOfPods("oldObject") + "[?k]))"
	return policy{
		name: podRequestsName, app: ControllerName, informs: true,
		resources: []string{"pods"}, others: workloads(),
		operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
		when: "!(" + byControllers + ") && !" + ofPods("object", "spec.?hostNetwork", "false") + " && " +
			"[" + annotationsOfPods("object") + "].exists(all, all.size() > 0 && " + fmt.Sprintf(changed, "all") + ".size() > 0)",
		variables: []admissionv1.Variable{
			{Name: "all", Expression: annotationsOfPods("object")},
			{Name: "changed", Expression: fmt.Sprintf(changed, "variables.all")},
			{Name: "unreadable", Expression: fmt.Sprintf("variables.changed.filter(k, [string(variables.all[k]).trim()].exists(v, v != '' && v.size() <= %d && !(%s : true)))",
				maxChecked, strings.Join(readable, " : "))},
		},
		validations: []admissionv1.Validation{{
			Expression: "variables.unreadable.size() == 0",
			MessageExpression: "variables.unreadable.map(k, k + ': ' + " + quoted("string(variables.all[k])") + " + ' cannot be read: ' + {" +
				strings.Join(wants, ", ") + "}[k]).join('; ')",
			Message: "an annotation with a request for the pod's network cannot be read: see docs/reference/api.md#annotations",
		}},
	}
}
