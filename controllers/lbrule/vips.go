// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

// reserve creates Vips for the rule's addresses in subnets of its VPC. A Vip keeps the address from pods, and makes the router answer ARP
// and neighbour discovery for it.
func (r *controller) reserve(ctx context.Context, rule *rule, s *state) error {
	for _, vip := range s.in.VIPs {
		subnet, err := r.subnetWith(ctx, s.in.Vpc, vip)
		if err != nil {
			return err
		}
		if subnet == "" {
			continue
		}
		r.watch(rule, s, "use/"+subnet)
		own, waiting := reservedName(rule.GetName(), vip), ""
		holder := r.Allocator.Holder(subnet, vip)
		name, isVip := strings.CutPrefix(holder, translate.VipHolder(""))
		switch {
		case holder == "" || name == own:
			wanted := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: own}, Spec: kubeovnv1.VipSpec{Subnet: subnet, Type: kubeovnv1.VipTypeSwitchLB}}
			if vip.Is4() {
				wanted.Spec.V4IP = vip.String()
			} else {
				wanted.Spec.V6IP = vip.String()
			}
			var have *kubeovnv1.Vip
			have, waiting, err = r.need(ctx, rule, s, wanted)
			switch {
			case have == nil || reserves(have, subnet, vip):
			case len(owners(have, kinds...)) > 0: // of rules, from when another subnet had the address: releaseVips deletes it
				delete(s.vips, own)
				waiting = "Vip " + own + " to be created for subnet " + subnet
			default:
				s.problem = validation.InUse("vip: Vip %s, which would reserve %s of subnet %s, has another type, subnet or address: "+
					"delete it, or create a rule of another name", own, vip, subnet)
			}
		case isVip:
			waiting, err = r.needOther(ctx, rule, s, name, vip)
		default:
			s.problem = validation.InUse("vip: %s of subnet %s is taken by %s: choose another address, or free it", vip, subnet, holder)
		}
		if err != nil || s.problem != nil {
			return err
		}
		if waiting != "" {
			s.waiting = append(s.waiting, waiting)
		}
	}
	return nil
}

// reserves reports whether a Vip reserves an address of a subnet for rules. It is true as long as a Vip may still get the address, or is being
// deleted, since another one then replaces it.
func reserves(have *kubeovnv1.Vip, subnet string, vip netip.Addr) bool {
	switch {
	case have.DeletionTimestamp != nil:
		return true
	case have.Spec.Type != kubeovnv1.VipTypeSwitchLB || cmp.Or(have.Spec.Subnet, kubeovnv1.DefaultSubnet) != subnet:
		return false
	}
	texts := []string{have.Status.V4IP, have.Status.V6IP}
	if have.Status.V4IP+have.Status.V6IP == "" {
		texts = []string{have.Spec.V4IP, have.Spec.V6IP}
	}
	hasAddress := false
	for _, text := range texts {
		address, err := ipfamily.ParseAddr(text)
		if err == nil && address == vip {
			return true
		}
		hasAddress = hasAddress || text != ""
	}
	return !hasAddress
}

// reservedName returns the name of the Vip that holds an address of a rule.
func reservedName(rule string, vip netip.Addr) string {
	return translate.LBRulePrefix(translate.KindSwitchLBRule) + rule + "-" + strings.NewReplacer(".", "-", ":", "-").Replace(vip.StringExpanded())
}

// needOther uses an existing Vip with the address: a Vip that a user created, or the Vip of another rule with other ports.
func (r *controller) needOther(ctx context.Context, rule *rule, s *state, name string, vip netip.Addr) (waiting string, err error) {
	other, waiting, err := r.need(ctx, rule, s, &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if err == nil && other != nil && other.Spec.Type != kubeovnv1.VipTypeSwitchLB {
		s.problem = validation.InUse("vip: %s is held by Vip %s, which is not of type %s: choose another address, or create that Vip with this type",
			vip, name, kubeovnv1.VipTypeSwitchLB)
	}
	return waiting, err
}

// need records that the rule needs a Vip and returns it, or nil if it does not exist yet. If the Vip is missing and wanted has a spec, need
// creates it. If it has rules as owners, need adds this rule to them; a Vip that a user created gets no owner. waiting describes the event
// that the rule waits for. In a trial nothing is created or changed.
func (r *controller) need(
	ctx context.Context, rule *rule, s *state, wanted *kubeovnv1.Vip,
) (vip *kubeovnv1.Vip, waiting string, err error) {
	r.watch(rule, s, "vip/"+wanted.Name)
	vip, err = k8s.Find[kubeovnv1.Vip](ctx, r.Client, client.ObjectKeyFromObject(wanted))
	if err != nil {
		return nil, "", fmt.Errorf("get Vip %s: %w", wanted.Name, err)
	}
	s.vips[wanted.Name] = wanted
	if s.trial && vip != nil {
		return k8s.AppliedVip(vip), "", nil
	}
	if s.trial {
		return nil, "", nil
	}
	if vip == nil {
		if waiting = "Vip " + wanted.Name; wanted.Spec.Subnet == "" {
			return nil, waiting, nil // it was just deleted: the change of the subnet's usage requeues the rule
		}
		wanted.OwnerReferences = []metav1.OwnerReference{rule.reference()}
		if err := client.IgnoreAlreadyExists(r.Client.Create(ctx, wanted, k8s.FieldOwner)); err != nil {
			return nil, "", fmt.Errorf("create Vip %s: %w", wanted.Name, err)
		}
		return nil, waiting, nil
	}
	if len(owners(vip, kinds...)) > 0 && !rule.owns(vip) {
		base := vip.DeepCopy()
		vip.OwnerReferences = append(vip.OwnerReferences, rule.reference())
		if err := r.Client.Patch(ctx, vip, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}), k8s.FieldOwner); err != nil {
			return nil, "", fmt.Errorf("own Vip %s: %w", vip.Name, err)
		}
	}
	switch c := apimeta.FindStatusCondition(vip.Status.Conditions, kubeovnv1.ConditionValidated); {
	case vip.DeletionTimestamp != nil:
		waiting = "Vip " + vip.Name + " to be gone, and to be created again"
	case c != nil && c.Status == metav1.ConditionFalse && vip.Status.V4IP+vip.Status.V6IP == "":
		waiting = "Vip " + vip.Name + ": " + c.Message
	case vip.Status.V4IP+vip.Status.V6IP == "":
		waiting = "Vip " + vip.Name + " to have its addresses"
	}
	return k8s.AppliedVip(vip), waiting, nil
}

// releaseVips removes the rule from the owners of Vips that it no longer needs. The last owner deletes the Vip.
func (r *controller) releaseVips(ctx context.Context, rule *rule, needed map[string]*kubeovnv1.Vip) error {
	var list kubeovnv1.VipList
	if err := r.Client.List(ctx, &list, client.MatchingFields{r.indexOwner(): rule.GetName()}); err != nil {
		return fmt.Errorf("list the rule's Vips: %w", err)
	}
	for i := range list.Items {
		vip := &list.Items[i]
		if needed[vip.Name] != nil || vip.DeletionTimestamp != nil {
			continue
		}
		if err := r.release(ctx, rule, vip); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("give up Vip %s: %w", vip.Name, err)
		}
	}
	return nil
}

func (r *controller) release(ctx context.Context, rule *rule, vip *kubeovnv1.Vip) error {
	base := vip.DeepCopy()
	vip.OwnerReferences = slices.DeleteFunc(vip.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == rule.GetUID() })
	if len(owners(vip, kinds...)) == 0 {
		return r.Client.Delete(ctx, vip, client.Preconditions{UID: &base.UID, ResourceVersion: &base.ResourceVersion})
	}
	return r.Client.Patch(ctx, vip, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}), k8s.FieldOwner)
}

// subnetWith returns the name of the subnet of a VPC whose last valid spec contains an address, or "". A Subnet that was just changed, or
// whose spec is invalid, keeps the reservations of rules: a pod could get their addresses otherwise.
func (r *controller) subnetWith(ctx context.Context, vpc string, a netip.Addr) (string, error) {
	subnets, err := r.Networks.ValidSubnetsOf(ctx, vpc)
	if err != nil {
		return "", fmt.Errorf("find the subnet of %s: %w", a, err)
	}
	for _, s := range subnets {
		cidrs, err := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
		if err == nil && lookup.OnNetwork(s, kubeovnv1.ProviderOVN) && slices.ContainsFunc(cidrs, func(cidr netip.Prefix) bool { return cidr.Contains(a) }) {
			return s.Name, nil
		}
	}
	return "", nil
}
