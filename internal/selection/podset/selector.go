// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podset answers which pods the sets of policies hold: an index of pods, namespaces and selectors that follows changes of each
// by what they touch.
package podset

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Role is what a set is for.
type Role string

const (
	// Subjects are pods to which rules apply: their ports, in a port group.
	Subjects Role = "subjects"
	// Peers are pods that rules name: their addresses, in an address set of each family.
	Peers Role = "peers"
	// Pods are peers without those on the host network.
	Pods Role = "pods"
)

// Selector says which pods a set holds. It is comparable: equal selectors, whoever uses them, are one set.
type Selector struct {
	Role Role
	// Namespace of the pods; empty for all namespaces that Namespaces selects.
	Namespace string
	// Namespaces selects namespaces by their labels, and Pods pods, each in the form of Labels. Empty selects all.
	Namespaces string
	Pods       string
	// Port is the name of a port of Protocol that the pods have; empty for all pods. Pods with different numbers for it are in
	// different parts of the set.
	Port     string
	Protocol string
	// Group is the security group that the pods name, wherever they are and whatever labels they have. Last sets of subjects are of groups
	// in the last tier.
	Group string
	Last  bool
	// Ungrouped sets hold no pods that name security groups: those decide all there is for them.
	Ungrouped bool
}

// Name is short, the same for the same selector for ever, and fit for an owner's name.
func (s Selector) Name() string {
	parts := []string{string(s.Role), s.Namespace, s.Namespaces, s.Pods, s.Port, s.Protocol}
	if s.Group != "" {
		parts = append(parts, s.Group, strconv.FormatBool(s.Last))
	}
	if s.Ungrouped {
		parts = append(parts, "ungrouped")
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", parts))
	return hex.EncodeToString(sum[:10])
}

// String is the selector in words, for people who look into the database.
func (s Selector) String() string {
	out := string(s.Role)
	if s.Group != "" {
		return out + " in security group " + s.Group
	}
	if s.Namespace != "" {
		out += " in namespace " + s.Namespace
	} else {
		out += " in namespaces with [" + s.Namespaces + "]"
	}
	out += " with [" + s.Pods + "]"
	if s.Port != "" {
		out += " and port " + s.Protocol + "/" + s.Port
	}
	if s.Ungrouped {
		out += " and no security group"
	}
	return out
}

// Labels is the canonical form of a label selector; nil selects all.
func Labels(selector *metav1.LabelSelector) (string, error) {
	if selector == nil {
		return "", nil
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return "", fmt.Errorf("label selector: %w", err)
	}
	return parsed.String(), nil
}

// parse is the inverse of Labels.
func parse(canonical string) labels.Selector {
	selector, err := labels.Parse(canonical)
	if err != nil {
		return labels.Nothing() // not made by Labels
	}
	return selector
}
