// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// reloadOrder are the components in the order of an upgrade. Others follow.
var reloadOrder = []string{openVSwitch, agent, "ovn-central-nb", "ovn-central-sb", "ovn-central-northd", "kube-ovn-controller"}

// reload returns the command `kubectl ko reload`.
func (p *plugin) reload() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "reload [COMPONENT…]",
		Short: "Replaces the pods of components one by one, by default of all",
		Long: "Deletes the pods of components one at a time, in the order of an upgrade, and waits after each until its replacement is ready and no other\n" +
			"pod is missing. The leader of a database is the last of its members. An interrupted command can be repeated.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes {
				return errors.New("flows may lose packets while pods are replaced (docs/operations/upgrades.md): repeat the command with --yes")
			}
			return p.replaceAll(cmd.Context(), args)
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "replace the pods")
	return cmd
}

func (p *plugin) replaceAll(ctx context.Context, wanted []string) error {
	oc, err := p.cluster(ctx)
	if err != nil {
		return err
	}
	names, err := reloaded(oc, wanted)
	if err != nil {
		return err
	}
	for _, name := range names {
		pods, err := p.podsOf(ctx, name)
		if err != nil {
			return err
		}
		slices.SortStableFunc(pods, func(a, b corev1.Pod) int { return cmp.Compare(rank(oc, &a), rank(oc, &b)) })
		for i := range pods {
			if err := p.replace(ctx, name, &pods[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// reloaded returns the components to reload in their order. It returns an error for names that are no components.
func reloaded(oc *v1alpha1.OVNCluster, wanted []string) ([]string, error) {
	var all []string
	for _, c := range oc.Status.Components {
		all = append(all, c.Name)
	}
	for _, name := range wanted {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("%q is no component: use %s", name, strings.Join(all, ", "))
		}
	}
	slices.SortStableFunc(all, func(a, b string) int { return cmp.Compare(place(a), place(b)) })
	return slices.DeleteFunc(all, func(name string) bool { return len(wanted) > 0 && !slices.Contains(wanted, name) }), nil
}

func place(component string) int {
	if i := slices.Index(reloadOrder, component); i >= 0 {
		return i
	}
	return len(reloadOrder)
}

// rank is 1 for the leader of a database, whose pod is replaced last, and 0 for other pods.
func rank(oc *v1alpha1.OVNCluster, pod *corev1.Pod) int {
	for _, db := range databases {
		if pod.Labels[componentLabel] == db.component && db.of(&oc.Status).Leader == pod.Spec.NodeName {
			return 1
		}
	}
	return 0
}

// replace deletes a pod and waits until the component has as many ready pods as it needs, without that pod. Before that it waits until all pods
// are ready, so that never two are missing.
func (p *plugin) replace(ctx context.Context, component string, pod *corev1.Pod) error {
	if err := p.awaitReady(ctx, component, ""); err != nil {
		return err
	}
	fmt.Fprintf(p.out, "replacing %s on %s\n", pod.Name, pod.Spec.NodeName)
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}
	err := p.pods.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, options)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // otherwise another writer has replaced it
		return fmt.Errorf("delete pod %s: %w", pod.Name, err)
	}
	return p.awaitReady(ctx, component, string(pod.UID))
}

// awaitReady waits until every pod of a component is ready and the pod with the UID no longer exists.
func (p *plugin) awaitReady(ctx context.Context, component, without string) error {
	return p.follow(ctx, func(oc *v1alpha1.OVNCluster) (bool, error) {
		at := slices.IndexFunc(oc.Status.Components, func(c v1alpha1.ComponentStatus) bool { return c.Name == component })
		if at < 0 {
			return false, fmt.Errorf("component %s does not run anymore", component)
		}
		pods, err := p.podsOf(ctx, component)
		if refused(err) {
			return false, err
		}
		ready := int32(0)
		for i := range pods { // none after an error: the next attempt lists again
			if string(pods[i].UID) == without {
				return false, nil
			}
			if isReady(&pods[i]) {
				ready++
			}
		}
		return err == nil && ready >= oc.Status.Components[at].Desired, nil
	})
}

func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
