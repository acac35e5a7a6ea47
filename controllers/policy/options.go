// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// Values of annotations of NetworkPolicies.
const (
	enforcementStandard = "standard"
	enforcementLax      = "lax"
	networkPrimary      = "ovn"
)

// defaultLogRate is the default maximum of packets per second that a policy logs on a node.
const defaultLogRate = 100

// options are the settings in a NetworkPolicy's annotations.
type options struct {
	// applies: the policy applies to the first network of pods.
	applies bool
	// lax: drop TCP, UDP and SCTP only.
	lax bool
	// log contains the actions whose packets are logged.
	log     map[nb.ACLAction]bool
	logRate int
}

// readOptions reads the annotations. An invalid value is reported as a problem, and the strict default applies.
func readOptions(annotations map[string]string) (options, []string) {
	o := options{applies: true, log: map[nb.ACLAction]bool{}, logRate: defaultLogRate}
	var problems []string
	wrong := func(a kubeovnv1.Annotation, want string) {
		problems = append(problems, fmt.Sprintf("annotation %s is %q: write %s", a.Key(), annotations[a.Key()], want))
	}
	get := func(a kubeovnv1.Annotation) string { return strings.ToLower(strings.TrimSpace(annotations[a.Key()])) }
	switch get(kubeovnv1.AnnotationEnforcement) {
	case "", enforcementStandard:
	case enforcementLax:
		o.lax = true
	default:
		wrong(kubeovnv1.AnnotationEnforcement, "standard or lax")
	}
	if get(kubeovnv1.AnnotationEnableLog) == "true" {
		actions := get(kubeovnv1.AnnotationLogActions)
		if actions == "" {
			actions = nb.ACLActionDrop
		}
		for action := range strings.SplitSeq(actions, ",") {
			switch strings.TrimSpace(action) {
			case nb.ACLActionDrop:
				o.log[nb.ACLActionDrop] = true
			case nb.ACLActionAllow:
				o.log[nb.ACLActionAllowRelated] = true
			case nb.ACLActionPass: // only other kinds of policies have it
			default:
				wrong(kubeovnv1.AnnotationLogActions, "allow, drop, or both with a comma between them")
			}
		}
	}
	if rate := get(kubeovnv1.AnnotationLogRate); rate != "" {
		n, err := strconv.ParseUint(rate, 10, 31)
		if err != nil || n == 0 || n > maxLogRate {
			wrong(kubeovnv1.AnnotationLogRate, fmt.Sprintf("packets per second, from 1 to %d", maxLogRate))
		}
		switch {
		case n > maxLogRate || errors.Is(err, strconv.ErrRange):
			o.logRate = maxLogRate
		case err == nil && n > 0:
			o.logRate = int(n)
		}
	}
	o.applies, problems = networks(get(kubeovnv1.AnnotationPolicyFor), problems)
	return o, problems
}

// networks reports whether a list of networks contains the first network. Other networks are reported as problems, because policies of
// attachments are not supported. A list with an entry that is no network applies to the first one: a mistake must not open what a policy closes.
func networks(list string, problems []string) (primary bool, _ []string) {
	if list == "" {
		return true, problems
	}
	for network := range strings.SplitSeq(list, ",") {
		network = strings.TrimSpace(network)
		namespace, name, attachment := strings.Cut(network, "/")
		switch {
		case network == networkPrimary:
			primary = true
		case network == "":
		case attachment && len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Subdomain(name)) == 0:
			problems = append(problems, fmt.Sprintf("annotation %s names %s: this version has policies of pods' first network, ovn, only",
				kubeovnv1.AnnotationPolicyFor.Key(), network))
		default:
			primary = true
			problems = append(problems, fmt.Sprintf("annotation %s names %q, which is no network: write ovn, or the namespace and the name of an attachment as in "+
				"default/net1; until then the policy applies to ovn", kubeovnv1.AnnotationPolicyFor.Key(), network))
		}
	}
	return primary, problems
}
