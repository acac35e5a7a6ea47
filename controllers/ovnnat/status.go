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
	st := rule.Status
	*st.Vpc, *st.Ready = vpc, ready.Status == metav1.ConditionTrue
	for i := range external {
		*st.External[i], *st.Internal[i] = external[i], internal[i]
	}
	if valid {
		st.Accept()
	}
	switch o := rule.Object.(type) {
	case *kubeovnv1.OvnFip:
		o.Status.MACAddress = s.inside.MAC.String()
	case *kubeovnv1.OvnDnatRule:
		dnat := &o.Status
		dnat.Protocol, dnat.ExternalPort, dnat.InternalPort, dnat.IPName = "", "", "", s.spec.IP+s.spec.Vip
		if s.served {
			dnat.Protocol, dnat.ExternalPort, dnat.InternalPort = strings.ToLower(string(s.spec.Protocol)), fmt.Sprint(s.spec.ExternalPort), fmt.Sprint(s.spec.InternalPort)
		}
	}
	k8s.SetConditions(st.Conditions, rule.GetGeneration(), k8s.Validated(s.problem), ready)
	k8s.WarnAnew(r.Recorder, rule.Object, kubeovnv1.ConditionsOf(base), *st.Conditions, kubeovnv1.ConditionValidated)
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
