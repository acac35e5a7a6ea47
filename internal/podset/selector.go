// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podset computes which pods are in the sets that policies use. It is an index of pods, namespaces and selectors that is
// updated incrementally.
package podset

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Role is the purpose of a set.
type Role string

const (
	// Subjects are pods to which rules apply: their ports are in a port group.
	Subjects Role = "subjects"
	// Peers are pods that rules refer to: their addresses are in one address set per family.
	Peers Role = "peers"
	// Pods are Peers without pods on the host network.
	Pods Role = "pods"
	// Egress are pods with a fixed source address. Of several owners of such sets the first one has the pod.
	Egress Role = "egress"
)

// Selector defines which pods a set contains. It is comparable: users with equal selectors share one set.
type Selector struct {
	Role Role
	// Namespace of the pods; empty for all namespaces that Namespaces selects.
	Namespace string
	// Namespaces selects namespaces by their labels, and Pods selects pods, each in the form that Labels returns. Empty selects all.
	Namespaces string
	Pods       string
	// Port is a port name, and Protocol its protocol; only pods that have this port are in the set. Empty means all pods. Pods with
	// different numbers for the port are in different parts of the set.
	Port     string
	Protocol string
	// Group is a security group; the set contains the pods that name it, in any namespace and with any labels. Last is true for sets
	// of subjects whose group is in the last tier.
	Group string
	Last  bool
	// Ungrouped excludes pods that name security groups: the groups alone decide about their traffic.
	Ungrouped bool
	// Owner is the owner of a set of Egress (OwnerOf): the first one in the order of these texts has a pod. Vpc limits the set to pods of a VPC. Eip is the OvnEip that
	// gives the addresses; without one, the pods' addresses are in one address set per family.
	Owner, Vpc, Eip string
	// Former is the name of a set of Egress whose selector is not known: a former process wrote it. It has the members that the database has in it (World.Led).
	Former string
}

// Name returns a short name that is stable for a selector across versions and valid as an owner's name.
func (s Selector) Name() string {
	if s.Former != "" {
		return s.Former
	}
	parts := []string{string(s.Role), s.Namespace, s.Namespaces, s.Pods, s.Port, s.Protocol}
	if s.Group != "" {
		parts = append(parts, s.Group, strconv.FormatBool(s.Last))
	}
	if s.Ungrouped {
		parts = append(parts, "ungrouped")
	}
	if s.Owner != "" {
		parts = append(parts, s.Owner, s.Vpc, s.Eip)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", parts))
	return hex.EncodeToString(sum[:10])
}

// String describes the selector for readers of the database.
func (s Selector) String() string {
	out := string(s.Role)
	if s.Former != "" {
		return out + " of a former selector for EgressAddress " + NameOf(s.Owner)
	}
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
	if s.Owner != "" {
		out += " in VPC " + s.Vpc + " for EgressAddress " + NameOf(s.Owner)
	}
	return out
}

// Labels returns the canonical form of a label selector; nil selects all.
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
		return labels.Nothing() // not a result of Labels
	}
	return selector
}
