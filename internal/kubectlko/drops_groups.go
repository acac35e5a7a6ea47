// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/policy"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/trace"
)

// placeholder is an address for peers whose addresses do not matter: only the names of ACLs are used.
var placeholder = netip.MustParsePrefix("192.0.2.1/32")

// aclsWorld has the inputs of rules of which only the names of ACLs are used.
var aclsWorld = policy.World{
	Numbers: func(podset.Selector) []int32 { return nil }, Group: func(string) bool { return true },
	Nodes: func(*metav1.LabelSelector) ([]netip.Prefix, error) { return []netip.Prefix{placeholder}, nil },
}

// addDrops adds an object with the names of the ACLs with which it logs drops.
func (w *watched) addDrops(o trace.Object, from client.Object, names []string) {
	w.policies[o] = from
	for _, name := range names {
		of := o
		of.Rule = ruleOf(o.Kind, name)
		w.addACL(name, of)
	}
}

// ruleOf returns the rule of an ACL by its name, such as sg/web/ingress/0 or anp/admin/egress/1/ip4. It is empty for a default, and for a name that is cut.
func ruleOf(kind, name string) string {
	parts := strings.Split(name, "/")
	if len(name) >= maxACLName || len(parts) < 4 || parts[3] == "default" {
		return ""
	}
	if kind == kindSecurityGroup {
		return parts[2] + "Rules[" + parts[3] + "]"
	}
	return parts[2] + "[" + parts[3] + "]"
}

// readGroups adds the security groups that the pods name.
func (r *dropsRun) readGroups(ctx context.Context, w *watched) error {
	names := slices.Sorted(maps.Keys(w.groups))
	for _, name := range names[:min(len(names), maxDropPolicies)] {
		sg := &kubeovnv1.SecurityGroup{}
		switch err := r.objects.Get(ctx, client.ObjectKey{Name: name}, sg); {
		case apierrors.IsForbidden(err):
			r.note("SecurityGroups may log nothing: you may not get %s", resourceOf(kindSecurityGroup))
			return nil
		case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		case err != nil:
			return fmt.Errorf("read SecurityGroup %s: %w", name, err)
		default:
			acls, _ := policy.LoggedDrops(sg, aclsWorld)
			w.addDrops(trace.Object{Kind: kindSecurityGroup, Name: name}, sg, acls)
		}
	}
	return nil
}

// readClusterPolicies adds the cluster-wide policies that select the pods and drop packets.
func (r *dropsRun) readClusterPolicies(ctx context.Context, w *watched) error {
	if r.ignored {
		return nil
	}
	var sets *podset.Index
	read := map[string]bool{} // the first version that the API server serves
	for _, kind := range policy.ClusterKinds() {
		if read[kind.Name] {
			continue
		}
		list := kind.List()
		err := r.objects.List(ctx, list)
		switch {
		case meta.IsNoMatchError(err) || apierrors.IsNotFound(err):
			continue
		case apierrors.IsForbidden(err):
			r.note("%s may log nothing: you may not list %s", kind.Name, resourceOf(kind.Name))
			read[kind.Name] = true
			continue
		case err != nil:
			return fmt.Errorf("list %s: %w", kind.Resource, err)
		}
		read[kind.Name] = true
		items, err := meta.ExtractList(list)
		if err != nil {
			return fmt.Errorf("read %s: %w", kind.Resource, err)
		}
		if len(items) > 0 && sets == nil {
			if sets, err = r.membership(ctx, w); err != nil {
				return err
			}
		}
		for _, item := range items {
			o := item.(client.Object)
			if acls, subjects := policy.LoggedDrops(o, aclsWorld); len(acls) > 0 && selects(sets, subjects, w.pods) {
				w.addDrops(trace.Object{Kind: kind.Name, Name: o.GetName()}, o, acls)
			}
		}
	}
	return nil
}

// membership returns an index of the pods, by which selectors of cluster-wide policies are evaluated.
func (r *dropsRun) membership(ctx context.Context, w *watched) (*podset.Index, error) {
	sets := podset.New()
	seen := map[string]bool{}
	for _, pod := range w.pods {
		if !seen[pod.Namespace] {
			seen[pod.Namespace] = true
			namespace := &corev1.Namespace{}
			switch err := r.objects.Get(ctx, client.ObjectKey{Name: pod.Namespace}, namespace); {
			case apierrors.IsForbidden(err):
				r.note("cluster-wide policies that select namespace %s may log nothing: you may not get namespaces", pod.Namespace)
				continue
			case err != nil:
				return nil, fmt.Errorf("read namespace %s: %w", pod.Namespace, err)
			}
			sets.SetNamespace(namespace.Name, namespace.Labels)
		}
		sets.SetPod(podset.Of(pod, kubeovnv1.ProviderOVN, kubeovnv1.ParseSecurityGroups(pod.Annotations)))
	}
	return sets, nil
}

// selects reports whether a set has one of the pods.
func selects(sets *podset.Index, set podset.Selector, pods []*corev1.Pod) bool {
	owner := desired.Owner{Kind: "drops"}
	sets.Use(owner, []podset.Selector{set})
	sets.Settle(owner)
	return slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
		parts := sets.Membership(podset.KeyOf(pod, kubeovnv1.ProviderOVN)).Parts
		return slices.ContainsFunc(parts, func(p podset.Part) bool { return p.Selector == set })
	})
}
