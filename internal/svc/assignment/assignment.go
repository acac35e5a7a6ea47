// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package assignment writes the addresses of Services of type LoadBalancer to their status.
package assignment

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// Reasons of the condition kubeovnv1.ConditionAddressAssigned, of pools and of OvnEips.
const (
	// ReasonAssigned: the Service has the addresses that it requests.
	ReasonAssigned = "Assigned"
	// ReasonFamilyMissing: the pool or the OvnEip has no address of a family of the Service.
	ReasonFamilyMissing = "FamilyMissing"
	// ReasonInvalidRequest: the requested addresses cannot be read, or are of another family.
	ReasonInvalidRequest = "InvalidRequest"
	// ReasonAddressUnavailable: the requested address is not in the pool or belongs to another object, or no OvnEip that lists the namespace has it.
	ReasonAddressUnavailable = "AddressUnavailable"
	// ReasonAddressInUse: the address of the Service, or a port of it, belongs to another object.
	ReasonAddressInUse = "AddressConflict"
)

// Result has the addresses of a Service and their problems.
type Result struct {
	Addresses []netip.Addr
	// Mode is of all addresses.
	Mode     corev1.LoadBalancerIPMode
	Problems []Problem
	// Notes are remarks without a problem.
	Notes []string
}

// Problem is a reason and a message of the condition. The zero value is no problem.
type Problem struct{ Reason, Message string }

// Problemf returns a problem.
func Problemf(reason, format string, args ...any) Problem {
	return Problem{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Add adds a problem, unless it is the zero value, or a problem already.
func (r *Result) Add(p Problem) {
	if p.Reason != "" && !slices.Contains(r.Problems, p) {
		r.Problems = append(r.Problems, p)
	}
}

// Condition returns the condition, with the reason of the first problem.
func (r *Result) Condition() metav1.Condition {
	c := metav1.Condition{Type: kubeovnv1.ConditionAddressAssigned, Status: metav1.ConditionTrue, Reason: ReasonAssigned}
	var texts []string
	if len(r.Addresses) > 0 {
		texts = append(texts, "assigned: "+ipfamily.Join(r.Addresses))
	}
	for i, p := range r.Problems {
		if i == 0 {
			c.Status, c.Reason = metav1.ConditionFalse, p.Reason
		}
		texts = append(texts, p.Message)
	}
	c.Message = strings.Join(append(texts, r.Notes...), "; ")
	return c
}

// Patch writes the addresses of a Service and the condition, and reports new problems in events. The message of the condition contains the addresses: so a patch with addresses
// is refused if another client has changed the Service meanwhile.
func (r *Result) Patch(ctx context.Context, c client.Client, recorder events.EventRecorder, s *corev1.Service) error {
	base := s.DeepCopy()
	var ingress []corev1.LoadBalancerIngress
	for _, a := range r.Addresses {
		entry := corev1.LoadBalancerIngress{IP: a.String(), IPMode: &r.Mode}
		for _, before := range s.Status.LoadBalancer.Ingress {
			if before.IP == entry.IP && r.Mode == corev1.LoadBalancerIPModeVIP { // an earlier controller of the class may have written more
				entry = before
			}
		}
		ingress = append(ingress, entry)
	}
	s.Status.LoadBalancer.Ingress = ingress
	k8s.SetConditions(&s.Status.Conditions, s.Generation, r.Condition())
	k8s.WarnAnew(recorder, s, base.Status.Conditions, s.Status.Conditions, kubeovnv1.ConditionAddressAssigned)
	return k8s.PatchStatus(ctx, c, base, s)
}
