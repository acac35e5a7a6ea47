// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// advice warns at once about annotations that have no effect: with names that Kiln does not know, for features that this version does not have,
// with values that cannot be read and are ignored, and on workloads instead of their pods. Pods with such annotations have events as well. It skips requests of
// byControllers, to which no user sees the response: most pods are created by them, and the policy costs the API server up to 0.2 ms.
func (c Config) advice() policy {
	unreadable, wants := adviceOnValues()
	return policy{
		name: advicePrefix, app: ControllerName, informs: true, warns: true,
		resources:  []string{"pods", "services", "nodes", "namespaces"},
		others:     append(workloads(), resources{kubeovnv1.GroupVersion.Group, []string{"subnets", "egress-addresses", "ovn-eips"}}),
		operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
		when: "!(" + byControllers + ") && !(" + c.isAccount(ControllerName) + ") && (" + annotationsOfPods("object") + ".exists(k, " + isOurs + " || " + isForeign + " || k in " + celList(kubeovnv1.BandwidthKeys) + ") || " +
			annotationsOfWorkload("object") + ".exists(k, " + isOurs + ")) && (oldObject == null || " +
			annotationsOfPods("object") + " != " + annotationsOfPods("oldObject") + " || " +
			annotationsOfWorkload("object") + " != " + annotationsOfWorkload("oldObject") + ")",
		variables: []admissionv1.Variable{
			{Name: "all", Expression: annotationsOfPods("object")},
			{Name: "unknown", Expression: "variables.all.filter(k, k.startsWith('" + annotationPrefix + "') && !(k in " + celList(kubeovnv1.KnownKeys()) + "))"},
			{Name: "ineffective", Expression: "variables.all.filter(k, variables.all[k] != '' && (k in " + celMap(kubeovnv1.IneffectiveKeys()) +
				" ? variables.all[k] != " + celMap(kubeovnv1.IneffectiveKeys()) + "[k] : " + isOfAttachment + "))"},
			{Name: "foreign", Expression: "variables.all.filter(k, " + isForeign + ")"},
			{Name: "onNode", Expression: ofPods("object", "spec.?hostNetwork", "false") + " ? variables.all.filter(k, k in " + celList(limitsAndMirror()) + ") : []"},
			{Name: "misplaced", Expression: annotationsOfWorkload("object") + ".filter(k, " + isOurs + ")"},
			{Name: "unreadable", Expression: unreadable},
		},
		validations: []admissionv1.Validation{
			advise("variables.unknown.size() == 0", "variables.unknown.map(k, "+withSimilar("k")+").join(', ') + ': Kiln knows no such annotation: '"+
				" + 'look for a typing error in docs/reference/api.md#annotations'"),
			advise("variables.ineffective.size() == 0", "variables.ineffective.join(', ') + ': without effect in this version'"),
			advise("variables.misplaced.size() == 0",
				"variables.misplaced.join(', ') + ': without effect here: annotations of pods belong to the metadata of the pod template'"),
			advise("variables.onNode.size() == 0", "variables.onNode.join(', ') + ': without effect with hostNetwork: the pod uses the interfaces of its node'"),
			advise("variables.foreign.size() == 0", "variables.foreign.map(k, k == '"+multusNetworks+"' ? k + ': Kiln makes one interface; only Multus, if it is "+
				"installed, makes others: install it, or remove the annotation' : k + ': without effect: write "+annotationPrefix+"' + "+afterForeign+").join('; ')"),
			advise("variables.unreadable.size() == 0", "variables.unreadable.map(k, k + ': ' + "+quoted("string(variables.all[k])")+
				" + ' cannot be read, and is ignored: ' + {"+strings.Join(wants, ", ")+"}[k]).join('; ')"),
		},
	}
}

// limitsAndMirror are the requests of limits and of copies. A pod with hostNetwork has no port of its own to which they could apply.
func limitsAndMirror() []string {
	keys := []string{kubeovnv1.AnnotationMirror.Key()}
	for _, a := range kubeovnv1.LimitAnnotations {
		keys = append(keys, a.Key())
	}
	return append(keys, kubeovnv1.BandwidthKeys...)
}

// adviceOnFields warns about kinds and fields that have no effect in this version. The objects have conditions as well.
func (c Config) adviceOnFields() policy {
	kinds := make([]string, 0, len(kubeovnv1.UnimplementedKinds))
	for _, k := range kubeovnv1.UnimplementedKinds {
		kinds = append(kinds, k.Kind)
	}
	var fields []string
	for _, f := range kubeovnv1.UnimplementedFields {
		of := fmt.Sprintf("dyn(object).kind == '%s'", f.Kind)
		if f.Except != "" {
			of += fmt.Sprintf(" && object.metadata.?name.orValue('') != '%s'", f.Except)
		}
		fields = append(fields, fmt.Sprintf("(%s && dyn(object).?spec.?%[2]s.orValue(%[3]s) != %[3]s ? ['%[2]s'] : [])", of, f.Field, f.None))
	}
	return policy{
		name: advicePrefix + "-fields", app: ControllerName, informs: true, warns: true,
		group: kubeovnv1.GroupVersion.Group, resources: kubeovnv1.Resources("", advised),
		operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
		when:       "!(" + c.isAccount(ControllerName) + ") && (oldObject == null || dyn(object).?spec != dyn(oldObject).?spec)",
		variables:  append([]admissionv1.Variable{{Name: "fields", Expression: strings.Join(fields, " + ")}}, subnetVariables...),
		validations: []admissionv1.Validation{
			advise("!(dyn(object).kind in "+celList(kinds)+")", "'this version of Kiln does not implement the kind ' + dyn(object).kind + ': the object has no effect'"),
			advise("variables.fields.size() == 0", "'without effect in this version: spec.' + variables.fields.join(', spec.')"),
			advise("variables.unmasked.size() == 0",
				"'cidrBlock: ' + variables.unmasked.map(c, c + ' has bits after the prefix length, and means ' + string(cidr(c).masked()) + ': write that').join(', ')"),
			advise("variables.outside.size() == 0",
				"'excludeIps: ' + variables.outside.join(', ') + ' is outside of cidrBlock ' + variables.cidrs.join(',') + ', and has no effect: correct or remove it'"),
			advise(fmt.Sprintf("dyn(object).kind != 'Subnet' || dyn(object).?spec.?provider.orValue('') in ['', '%s']", kubeovnv1.ProviderOVN),
				fmt.Sprintf("'provider ' + dyn(object).spec.provider + ': this version makes networks of the provider %[1]s only, and no network of this Subnet: leave it out, or write %[1]s'", kubeovnv1.ProviderOVN)),
			advise("dyn(object).kind != 'Vip' || dyn(object).?spec.?type.orValue('') in "+celList(append([]string{""}, kubeovnv1.VipTypes...)),
				"'type ' + dyn(object).spec.type + ': Kiln knows no such type, and ignores it: leave it out, or write "+strings.Join(kubeovnv1.VipTypes, ", ")+"'"),
		},
	}
}

// advised reports whether a kind, or one of its fields, has no effect in this version. The policy reads objects of these kinds only.
func advised(k *kubeovnv1.Kind) bool {
	return !k.Implemented || slices.ContainsFunc(kubeovnv1.UnimplementedFields, func(f kubeovnv1.UnimplementedField) bool { return f.Kind == k.Kind })
}

// subnetVariables are the networks of a Subnet, those with bits after the prefix length, and the entries of excludeIps that contain no address of the
// networks. They are empty for other kinds.
var subnetVariables = []admissionv1.Variable{
	{Name: "cidrs", Expression: "(dyn(object).kind == 'Subnet' ? dyn(object).?spec.?cidrBlock.orValue('') : '').split(',').map(c, c.trim()).filter(c, isCIDR(c))"},
	{Name: "unmasked", Expression: "variables.cidrs.filter(c, cidr(c) != cidr(c).masked())"},
	{Name: "outside", Expression: "(variables.cidrs.size() > 0 ? dyn(object).?spec.?excludeIps.orValue([]) : []).filter(e, !variables.cidrs.exists(c, " +
		"isCIDR(e) ? cidr(c).containsCIDR(e) || cidr(e).containsCIDR(c) : [e.split('..')[0]].all(a, !isIP(a) || cidr(c).containsIP(a))))"},
}

// isOurs is true for a key k of Kiln or Kube-OVN, isOfAttachment for that of a network other than a pod's first (`<attachment>.<namespace>`).
const (
	isOfAttachment = `k.matches('^[^/]+[.][^/]+[.]kubernetes[.]io/(ip_|mac_|logical_switch|routes$|default_route$|security_groups$|port_|(in|e)gress_|mirror$|latency$|jitter$|limit$|loss$)') && ` +
		`!k.startsWith('` + annotationPrefix + `')`
	isOurs = `(k.startsWith('` + annotationPrefix + `') || ` + isOfAttachment + `)`
)

// multusNetworks is the annotation with which pods request further interfaces of Multus.
const multusNetworks = "k8s.v1.cni.cncf.io/networks"

// foreignPrefix is the API group, which users mistake for the domain of the annotations.
const foreignPrefix = "kubeovn.io/"

// afterForeign is the name in a key k with foreignPrefix. isForeign is true for a key k that Kiln does not read, although users may expect it: with the
// API group instead of the domain of the annotations, or of Multus.
var (
	afterForeign = fmt.Sprintf("k.substring(%d)", len(foreignPrefix))
	isForeign    = "(k == '" + multusNetworks + "' || k.startsWith('" + foreignPrefix + "') && ('" + annotationPrefix + "' + " + afterForeign + ") in " +
		celList(kubeovnv1.KnownKeys()) + ")"
)

// withSimilar returns an expression for an unknown key, with the known names that have the same first letters.
func withSimilar(key string) string {
	var known []string
	for _, k := range kubeovnv1.AllAnnotationKeys() {
		known = append(known, strings.TrimPrefix(k, annotationPrefix))
	}
	return fmt.Sprintf("[%[1]s.substring(%[2]d)].map(n, %[3]s.filter(m, m.startsWith(n.size() < 4 ? n : n.substring(0, 4)))).map(l, "+
		"%[1]s + (l.size() == 0 ? '' : ' (did you mean ' + l.join(' or ') + '?)'))[0]", key, len(annotationPrefix), celList(known))
}

// annotationsOfPods returns an expression for the annotations of a pod, of the pods of a workload, or of another object.
func annotationsOfPods(object string) string { return ofPods(object, "metadata.?annotations", "{}") }

// ofPods returns an expression for a field of a pod, or of the pod template of a workload; none is the value of a missing field.
func ofPods(object, field, none string) string {
	return fmt.Sprintf("(dyn(%[1]s).kind == 'CronJob' ? dyn(%[1]s).?spec.?jobTemplate.?spec.?template.?%[2]s.orValue(%[3]s) : "+
		"dyn(%[1]s).?spec.?template.hasValue() ? dyn(%[1]s).?spec.?template.?%[2]s.orValue(%[3]s) : dyn(%[1]s).?%[2]s.orValue(%[3]s))", object, field, none)
}

// annotationsOfWorkload returns an expression for the own annotations of an object that has a pod template.
func annotationsOfWorkload(object string) string {
	return fmt.Sprintf("(dyn(%[1]s).kind == 'CronJob' || dyn(%[1]s).?spec.?template.hasValue() ? dyn(%[1]s).metadata.?annotations.orValue({}) : {})", object)
}

// adviceOnValues returns an expression for the keys with invalid values that Kiln ignores, and for each key the items of a map with what to write. Values without
// which a pod gets no network are denied by podRequests.
func adviceOnValues() (unreadable string, wants []string) {
	names := "v.split(',').map(n, n.trim()).all(n, n == '' || " + isName("n") + ")"
	var keys, valid []string
	for _, r := range []struct {
		key   string
		kinds []string
		valid string // an expression about v, the value
		want  string
	}{
		{kubeovnv1.AnnotationPortSecurity.Key(), kindsOfPods, isBoolean, "write true or false"},
		{kubeovnv1.AnnotationLayer2Forward.Key(), kindsOfPods, isBoolean, "write true or false"},
		{kubeovnv1.AnnotationMirror.Key(), kindsOfPods, isBoolean, "write true or false"},
		{kubeovnv1.AnnotationIngressRate.Key(), kindsOfPods, isNumber(6, 1_000_000), "write a number of Mbit/s, such as 10 or 2.5"},
		{kubeovnv1.AnnotationEgressRate.Key(), kindsOfPods, isNumber(6, 1_000_000), "write a number of Mbit/s, such as 10 or 2.5"},
		{kubeovnv1.AnnotationIngressBurst.Key(), kindsOfPods, isNumber(6, 1_000_000), "write a number of Mbit, such as 5"},
		{kubeovnv1.AnnotationEgressBurst.Key(), kindsOfPods, isNumber(6, 1_000_000), "write a number of Mbit, such as 5"},
		{kubeovnv1.KeyIngressBandwidth, kindsOfPods, isBandwidth, "write a number of bit/s, such as 10M"},
		{kubeovnv1.KeyEgressBandwidth, kindsOfPods, isBandwidth, "write a number of bit/s, such as 10M"},
		{kubeovnv1.AnnotationLatency.Key(), kindsOfPods, isNumber(3, 10_000), "write a number of milliseconds up to 10000"},
		{kubeovnv1.AnnotationJitter.Key(), kindsOfPods, isNumber(3, 10_000), "write a number of milliseconds up to 10000"},
		{kubeovnv1.AnnotationLimit.Key(), kindsOfPods, isNumber(0, kubeovnv1.MaxDelayed), fmt.Sprintf("write a number of packets up to %d", kubeovnv1.MaxDelayed)},
		{kubeovnv1.AnnotationLoss.Key(), kindsOfPods, isNumber(4, 100), "write a number of percent up to 100"},
		{kubeovnv1.AnnotationAAPs.Key(), kindsOfPods, names, "write names of Vips with commas between them"},
		{kubeovnv1.AnnotationEip.Key(), kindsOfPods, areAddresses("v") + " && " + differInFamily, onePerFamily},
		{kubeovnv1.AnnotationSnat.Key(), kindsOfPods, areAddresses("v") + " && " + differInFamily, onePerFamily},
		{kubeovnv1.AnnotationGroups.Key(), kindsOfPods, names, "write names of SecurityGroups with commas between them"},
		{kubeovnv1.AnnotationBGP.Key(), append([]string{"Service", "Subnet", "EgressAddress", "OvnEip"}, kindsOfPods...), "v in ['true', 'cluster', 'local', 'false']", "write true, cluster, local or false"},
		{kubeovnv1.AnnotationLogicalRouter.Key(), []string{"Service"}, isName("v"), "write the name of a Vpc"},
	} {
		key := celString(r.key)
		keys = append(keys, r.key)
		valid = append(valid, fmt.Sprintf("k == %s ? !(dyn(object).kind in %s) || %s", key, celList(r.kinds), r.valid))
		wants = append(wants, key+": "+celString(r.want))
	}
	// A list of one element binds the value to a name.
	return fmt.Sprintf("variables.all.filter(k, k in %s && [string(variables.all[k]).trim()].exists(v, v != '' && !(%s : true)))", celList(keys), strings.Join(valid, " : ")), wants
}

// isBandwidth is true for v if it is a quantity of kubeovnv1.ParseBandwidth.
var isBandwidth = fmt.Sprintf("v.matches(%s) && quantity(v).compareTo(quantity('0')) > 0 && quantity(v).compareTo(quantity('%d')) <= 0", celString(kubeovnv1.QuantityForm), int64(kubeovnv1.MaxBits))

// isNumber returns an expression that is true for v if it is a number up to a maximum, with at most the given number of decimals and without a sign.
func isNumber(decimals, most int) string {
	fraction := ""
	if decimals > 0 {
		fraction = fmt.Sprintf("([.][0-9]{1,%d})?", decimals)
	}
	return fmt.Sprintf("v.matches('^[0-9]{1,12}%s$') && double(v) <= %d.0", fraction, most)
}

// advise returns a validation with an expression for its message. The API server uses the constant message when that expression fails, for example
// because a value has several lines.
func advise(expression, message string) admissionv1.Validation {
	return admissionv1.Validation{
		Expression: expression, MessageExpression: message,
		Message: "a part of this object has no effect: see docs/reference/api.md#annotations and docs/reference/compatibility.md",
	}
}

// Informs reports whether an object belongs to an admission policy that only informs users, at apply, about parts without effect.
func Informs(o Object) bool {
	return strings.HasPrefix(o.GetName(), advicePrefix) || o.GetName() == podRequestsName
}

// advicePrefix is the prefix of the names of policies that only warn.
const advicePrefix = "kiln-advice"

func celMap(m map[string]string) string {
	var items []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		items = append(items, celString(key)+": "+celString(m[key]))
	}
	return "{" + strings.Join(items, ", ") + "}"
}

func celString(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}
