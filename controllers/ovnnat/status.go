// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
)

// byFamily has a text of each family.
type byFamily [2]string

func (b *byFamily) set(of netip.Addr, text string) {
	if ipfamily.Of(of) == ipfamily.IPv4 {
		b[0] = text
	} else {
		b[1] = text
	}
}

// patchStatus writes the outcome into the status of a rule. The addresses are in the rows.
func (r *controller) patchStatus(ctx context.Context, rule *lookup.NATRule, s state) error {
	base := rule.DeepCopyObject().(client.Object)
	var external, internal byFamily
	for _, pair := range s.pairs {
		if s.served {
			external.set(pair.External, pair.External.String())
			internal.set(pair.External, lookup.SourceText(pair.Internal))
		}
	}
	vpc, valid, ready := s.inside.Vpc, s.served && !s.retained, condition(s)
	if !s.served && rule.HasValid() {
		vpc = rule.Vpc() // for its claim (lookup.NATRule.Claim)
	}
	isReady := ready.Status == metav1.ConditionTrue
	var conditions *[]metav1.Condition
	switch o := rule.Object.(type) {
	case *kubeovnv1.OvnFip:
		st := &o.Status
		st.Vpc, st.V4Eip, st.V6Eip, st.V4IP, st.V6IP, st.MACAddress, st.Ready = vpc, external[0], external[1], internal[0], internal[1], s.inside.MAC.String(), isReady
		if conditions = &st.Conditions; valid {
			st.ValidatedSpec = o.Spec.DeepCopy()
		}
	case *kubeovnv1.OvnSnatRule:
		st := &o.Status
		st.Vpc, st.V4Eip, st.V6Eip, st.V4IPCIDR, st.V6IPCIDR, st.Ready = vpc, external[0], external[1], internal[0], internal[1], isReady
		if conditions = &st.Conditions; valid {
			st.ValidatedSpec = o.Spec.DeepCopy()
		}
	case *kubeovnv1.OvnDnatRule:
		st := &o.Status
		st.Vpc, st.V4Eip, st.V6Eip, st.V4IP, st.V6IP, st.Ready = vpc, external[0], external[1], internal[0], internal[1], isReady
		st.Protocol, st.ExternalPort, st.InternalPort, st.IPName = "", "", "", s.spec.IP+s.spec.Vip
		if s.served {
			st.Protocol, st.ExternalPort, st.InternalPort = strings.ToLower(string(s.spec.Protocol)), fmt.Sprint(s.spec.ExternalPort), fmt.Sprint(s.spec.InternalPort)
		}
		if conditions = &st.Conditions; valid {
			st.ValidatedSpec = o.Spec.DeepCopy()
		}
	}
	k8s.SetConditions(conditions, rule.GetGeneration(), k8s.Validated(s.problem), ready)
	k8s.WarnAnew(r.Recorder, rule.Object, kubeovnv1.ConditionsOf(base), *conditions, kubeovnv1.ConditionValidated)
	return k8s.PatchStatus(ctx, r.Client, base, rule.Object)
}

func condition(s state) metav1.Condition {
	stays := ""
	if s.retained {
		stays = "; the last valid spec stays applied"
	}
	switch {
	case s.err != nil:
		return k8s.Ready(s.err, northbound.ErrWaiting)
	case s.problem != nil:
		return k8s.NotReady(s.problem.Reason, s.problem.Message+stays)
	case s.missing != "":
		return k8s.NotReady(kubeovnv1.ReasonWaiting, "waiting for "+s.missing+stays)
	}
	ready := k8s.Ready(nil, nil)
	if s.note != "" {
		ready.Message += "; " + s.note
	}
	return ready
}

// label writes the labels and the annotation by which users of Kube-OVN select rules.
func (r *controller) label(ctx context.Context, rule *lookup.NATRule, s state) error {
	base := rule.DeepCopyObject().(client.Object)
	var external byFamily
	for _, pair := range s.pairs {
		external.set(pair.External, strings.ReplaceAll(pair.External.String(), ":", "-"))
	}
	labels := map[string]string{kubeovnv1.LabelEipV4: external[0], kubeovnv1.LabelEipV6: external[1]}
	if s.spec.ExternalPort != 0 {
		labels[kubeovnv1.LabelDnatPort] = fmt.Sprint(s.spec.ExternalPort)
	}
	k8s.SetLabels(rule.Object, labels)
	annotations := rule.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[kubeovnv1.AnnotationVpcEip.Key()] = s.spec.Eip
	rule.SetAnnotations(annotations)
	return k8s.Patch(ctx, r.Client, base, rule.Object)
}
