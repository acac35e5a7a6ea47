// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
)

// Reasons of problems of ProviderNetworks and Vlans.
const (
	ReasonNameInvalid  = "NameInvalid"  // metadata.name, which is a part of the bridge's name
	ReasonVlanConflict = "VlanConflict" // another Vlan of the same provider has the same id
)

// providerName has the names of which the bridge's name, the keys of labels, and entries of ovn-bridge-mappings can consist.
var providerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// linkName has the names of interfaces that are safe in Open vSwitch's database and in labels.
var linkName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)

// ProviderNetwork checks a ProviderNetwork.
func ProviderNetwork(name string, spec *kubeovnv1.ProviderNetworkSpec) *Problem {
	if len(name) > providerbridge.MaxName || !providerName.MatchString(name) {
		return Problemf(ReasonNameInvalid, "the name %q must have at most %d lower-case letters, digits and dashes, because it is a part of the name of "+
			"the bridge br-<name>: create the network with another name", name, providerbridge.MaxName)
	}
	interfaces := map[string]kubeovnv1.InterfaceName{"defaultInterface": spec.DefaultInterface}
	for _, custom := range spec.CustomInterfaces {
		if custom.Interface != "" {
			interfaces["customInterfaces: interface "+string(custom.Interface)] = custom.Interface
		}
	}
	for field, link := range interfaces {
		if !linkName.MatchString(string(link)) {
			return Problemf(ReasonFieldInvalid, "%s %q: write the name of an interface, of letters, digits, dashes, dots and underscores", field, link)
		}
	}
	if spec.NodeSelector != nil {
		if _, err := metav1.LabelSelectorAsSelector(spec.NodeSelector); err != nil {
			return Problemf(ReasonFieldInvalid, "nodeSelector: %v", err)
		}
	}
	return nil
}

// VlanConflict is the problem of a Vlan with the id and the provider of another one that precedes it.
func VlanConflict(id int, provider, other string) *Problem {
	return Problemf(ReasonVlanConflict, "Vlan %s has id %d of ProviderNetwork %s already: choose another id, or use Vlan %s in subnets", other, id, provider, other)
}
