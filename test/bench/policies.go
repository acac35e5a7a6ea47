// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// perGroup is the number of pods in each group besides the pod that moves, so that the move neither creates nor empties a group.
const perGroup = 2

// policyRounds is how many times a policy of many pods is created, each time with another TCP port.
const (
	policyRounds    = 5
	firstPolicyPort = 61000
)

// isolate measures the cost of a changed pod label under few and many policies, and the cost of a new policy of few and many pods.
// The pods run on no node, so it only checks that the changes reach the southbound database.
func (b *bench) isolate(ctx context.Context) error {
	if !b.options.northd {
		return errPaused
	}
	addresses, err := b.world.mention(ctx, "Address_Set", "addresses")
	if err != nil {
		return err
	}
	ports, err := b.world.mention(ctx, "Port_Group", "ports")
	if err != nil {
		return err
	}
	const few = 2
	mover, err := b.grouped(ctx, 1, 0)
	if err != nil {
		return err
	}
	if _, err := b.grouped(ctx, few*perGroup, few); err != nil {
		return err
	}
	label := func(groups int) (networkCosts, error) {
		return b.moveLabel(ctx, mover[0], groups, addresses)
	}
	flows, err := b.world.mention(ctx, "Logical_Flow", "match")
	if err != nil {
		return err
	}
	if err := b.groupPolicies(ctx, 0, few); err != nil {
		return err
	}
	emptyLabel, err := label(few)
	if err != nil {
		return err
	}
	emptyPolicy, err := b.selectPods(ctx, "one", mover, ports, flows)
	if err != nil {
		return err
	}
	many := b.options.policies
	if _, err := b.grouped(ctx, (many-few)*perGroup, many); err != nil {
		return err
	}
	if err := b.groupPolicies(ctx, few, many); err != nil {
		return err
	}
	manyLabel, err := label(many)
	if err != nil {
		return err
	}
	b.addAgainst(policiesScenario(many), manyLabel, emptyLabel)
	selected, err := b.grouped(ctx, b.options.selected, 0)
	if err != nil {
		return err
	}
	manyPolicy, err := b.selectPods(ctx, "many", selected, ports, flows)
	if err != nil {
		return err
	}
	b.addAgainst(selectedScenario(len(selected)), manyPolicy, emptyPolicy)
	return b.addMemory(ctx, selectedScenario(len(selected)))
}

func policiesScenario(n int) string { return fmt.Sprintf("%d policies", n) }
func selectedScenario(n int) string { return fmt.Sprintf("a policy of %d pods", n) }

// grouped creates n pods, waits for their network and puts them into the last of the given number of groups, perGroup pods into
// each.
func (b *bench) grouped(ctx context.Context, n, groups int) ([]string, error) {
	names := b.group("grouped", n)
	if err := b.loader.create(ctx, names); err != nil {
		return nil, err
	}
	if err := b.loader.await(ctx, names); err != nil {
		return nil, err
	}
	if groups > 0 {
		err := b.loader.each(ctx, names, func(ctx context.Context, i int, name string) error {
			return b.setLabel(ctx, name, "group", groupName(groups-1-i/perGroup))
		})
		if err != nil {
			return nil, err
		}
	}
	return names, b.calm(ctx)
}

func groupName(i int) string { return fmt.Sprintf("g%05d", i) }

func (b *bench) setLabel(ctx context.Context, pod, key, value string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, key, value)
	if _, err := b.world.clients.CoreV1().Pods(namespace).Patch(ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("label pod %s: %w", pod, err)
	}
	return nil
}

func selects(key, value string) metav1.LabelSelector {
	return metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

// groupPolicies creates a policy for each group in a range. It allows connections from the pods of the previous group.
func (b *bench) groupPolicies(ctx context.Context, from, to int) error {
	err := b.loader.each(ctx, podNames("group", to)[from:], func(ctx context.Context, i int, name string) error {
		nth := from + i
		return b.createPolicy(ctx, name, selects("group", groupName(nth)), selects("group", groupName(max(nth, 1)-1)), 80)
	})
	if err != nil {
		return err
	}
	return b.calm(ctx)
}

func (b *bench) createPolicy(ctx context.Context, name string, subjects, peers metav1.LabelSelector, port int32) error {
	only := intstr.FromInt32(port)
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: subjects,
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &peers}}, Ports: []networkingv1.NetworkPolicyPort{{Port: &only}},
		}},
	}}
	if _, err := b.world.clients.NetworkingV1().NetworkPolicies(namespace).Create(ctx, policy, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create policy %s: %w", name, err)
	}
	return nil
}

// moveLabel moves a pod between the first two groups. The pods of both are subjects and peers of policies.
func (b *bench) moveLabel(ctx context.Context, pod string, policies int, m *mentions) (networkCosts, error) {
	address, err := b.addressOf(ctx, pod)
	if err != nil {
		return networkCosts{}, err
	}
	if err := b.setLabel(ctx, pod, "group", groupName(1)); err != nil {
		return networkCosts{}, err
	}
	if err := b.calm(ctx); err != nil {
		return networkCosts{}, err
	}
	return b.probed(ctx, policiesScenario(policies), "one label", "PATCH pods", b.options.probes, func(n int) ([]sign, func() error) {
		return []sign{{m, fmt.Sprintf("%q", address)}}, func() error { return b.setLabel(ctx, pod, "group", groupName(n%2)) }
	})
}

func (b *bench) addressOf(ctx context.Context, name string) (string, error) {
	pod, err := b.world.clients.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get pod %s: %w", name, err)
	}
	return pod.Annotations[kubeovnv1.AnnotationIPAddress.Key()], nil
}

// selectPods repeatedly creates a policy of pods that have no other policy, and waits until their ports and its flows are in the
// southbound database. The deletions do not count.
func (b *bench) selectPods(ctx context.Context, set string, pods []string, ports, flows *mentions) (sum networkCosts, err error) {
	err = b.loader.each(ctx, pods, func(ctx context.Context, _ int, name string) error { return b.setLabel(ctx, name, "set", set) })
	if err != nil {
		return sum, err
	}
	if err := b.calm(ctx); err != nil {
		return sum, err
	}
	scenario, kept := selectedScenario(len(pods)), len(b.rows)
	var rounds []networkCosts
	for range policyRounds {
		b.made++
		port := int32(firstPolicyPort + b.made) // unique among the flows of policies
		c, err := b.probed(ctx, scenario, "its creation", "POST networkpolicies", 1, func(int) ([]sign, func() error) {
			signs := []sign{{flows, fmt.Sprintf("== %d", port)}}
			for _, name := range portNames(pods) {
				signs = append(signs, sign{ports, fmt.Sprintf("%q", name)})
			}
			return signs, func() error { return b.createPolicy(ctx, "selects", selects("set", set), selects("set", set), port) }
		})
		if err != nil {
			return sum, err
		}
		rounds = append(rounds, c)
		if err := b.world.clients.NetworkingV1().NetworkPolicies(namespace).Delete(ctx, "selects", metav1.DeleteOptions{}); err != nil {
			return sum, fmt.Errorf("delete a policy: %w", err)
		}
		if err := b.calm(ctx); err != nil {
			return sum, err
		}
	}
	b.rows = b.rows[:kept] // the medians suffice
	sum = medianCosts(rounds)
	b.addMedians(scenario, sum)
	return sum, nil
}
