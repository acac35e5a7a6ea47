// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package envcheck

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
)

// DataDirectory of the proposed OVNCluster. It is not Kube-OVN's directory: Kiln would start with Kube-OVN's database if it found one, and the way
// back to Kube-OVN needs the files unchanged.
const DataDirectory = "/etc/origin/kiln"

// proposal is the OVNCluster that continues an installation of Kube-OVN.
type proposal struct {
	spec v1alpha1.OVNClusterSpec
}

// newProposal permits what Kube-OVN permits. Administrators can make it stricter later.
func newProposal() *proposal {
	p := &proposal{}
	p.spec.Tenancy = v1alpha1.Tenancy{
		Membership: v1alpha1.MembershipOpen, PortSecurity: kubeovnv1.PortSecurityRequested, ExternalIPs: v1alpha1.ExternalIPsOpen,
	}
	p.spec.Central.DataDirectory = DataDirectory
	return p
}

// cidrs sets a list of networks from a list with commas. It returns why that is impossible, or "".
func (p *proposal) cidrs(into *[]string, value string) string {
	list, err := ipfamily.ParseCIDRs(value)
	if err != nil {
		return err.Error()
	}
	*into = nil
	for _, cidr := range list {
		*into = append(*into, cidr.Masked().String())
	}
	return ""
}

func (p *proposal) tunnel(value string) string {
	switch t := v1alpha1.TunnelType(value); t {
	case v1alpha1.TunnelGeneve, v1alpha1.TunnelVXLAN:
		p.spec.Network.TunnelType = t
		return ""
	}
	if value == "vlan" {
		return "set network.podVlan, with a Vlan and a ProviderNetwork (docs/user/underlay.md#ovn-default-on-a-physical-network)"
	}
	return "Kiln has tunnels of the types geneve and vxlan"
}

// conflistName is a name of the conflist that Kiln can have.
var conflistName = regexp.MustCompile(`^([0-9]{2})-kube-ovn\.conflist$`)

func (p *proposal) cniConfName(value string) string {
	name := conflistName.FindStringSubmatch(value)
	if name == nil {
		return "agent.cniConfPriority sets the two digits of the name; the rest is fixed"
	}
	p.spec.Agent.CNIConfPriority = name[1]
	return ""
}

// interfaceName is a name of an interface without characters of a regular expression.
var interfaceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,14}$`)

func (p *proposal) tunnelInterface(value string) string {
	if !interfaceName.MatchString(value) {
		return "nodes.tunnelInterface is one name for all nodes. Leave it out if the tunnels use the interface with the InternalIP of each node"
	}
	p.spec.Nodes.TunnelInterface = value
	return ""
}

func (p *proposal) mtu(value string) string {
	switch n, err := strconv.ParseInt(value, 10, 32); {
	case err != nil || n != 0 && (n < 576 || n > 65535):
		return "it is not an MTU"
	default:
		p.spec.Network.MTU = int32(n)
		return ""
	}
}

// placement carries the replicas, node selectors and directories of a workload of Kube-OVN.
func (p *proposal) placement(w *Workload) (found []Finding) {
	selector := maps.Clone(w.Template.Spec.NodeSelector)
	delete(selector, corev1.LabelOSStable)
	carry := func(field string, of *v1alpha1.Placement) {
		if len(selector) > 0 {
			of.NodeSelector = selector
			found = append(found, Finding{Carried, w.subject("nodeSelector"), field + ".nodeSelector"})
		}
		if k8s.KubeletsMaySatisfy(selector) {
			found = append(found, Finding{Warning, w.subject("nodeSelector"), fmt.Sprintf("%s: kubelets may write these labels, so that a stolen node can select itself: "+
				"use %s in %s.nodeSelector, or a label with the prefix node-restriction.kubernetes.io/", labels.FormatLabels(selector), v1alpha1.ControlPlaneLabel, field)})
		}
	}
	switch w.Name {
	case "ovn-central":
		carry("central", &p.spec.Central.Placement)
		if !slices.Contains([]int32{1, 3, 5}, w.Replicas) {
			return append(found, Finding{Warning, w.subject("replicas"), fmt.Sprintf("%d: central.replicas must be 1, 3 or 5, and the proposal leaves it out", w.Replicas)})
		}
		p.spec.Central.Replicas, p.spec.Central.NorthdReplicas = w.Replicas, min(w.Replicas, 2)
		found = append(found, Finding{Carried, w.subject("replicas"), fmt.Sprintf("central.replicas %d, central.northdReplicas %d", w.Replicas, min(w.Replicas, 2))})
	case "kube-ovn-controller":
		carry("controller", &p.spec.Controller.Placement)
		if w.Replicas > 0 {
			p.spec.Controller.Replicas = min(w.Replicas, 5)
			found = append(found, Finding{Carried, w.subject("replicas"), fmt.Sprintf("controller.replicas %d", min(w.Replicas, 5))})
		}
	case "kube-ovn-cni":
		p.directories(w)
	}
	return found
}

// directories carries the directories of CNI and of the kubectl plugin on nodes.
func (p *proposal) directories(w *Workload) {
	host := map[string]string{}
	for _, v := range w.Template.Spec.Volumes {
		if v.HostPath != nil {
			host[v.Name] = strings.TrimSuffix(v.HostPath.Path, "/")
		}
	}
	for _, c := range slices.Concat(w.Template.Spec.InitContainers, w.Template.Spec.Containers) {
		for _, m := range c.VolumeMounts {
			path := host[m.Name]
			switch strings.TrimSuffix(m.MountPath, "/") {
			case "/etc/cni/net.d":
				if path != "/etc/cni/net.d" {
					p.spec.Agent.CNIConfDirectory = path
				}
			case "/opt/cni/bin":
				if path != "/opt/cni/bin" {
					p.spec.Agent.CNIBinDirectory = path
				}
			case "/usr/local/bin": // where Kube-OVN installs its kubectl-ko
				p.spec.Agent.ToolingDirectory = path
			}
		}
	}
}

// manifest returns the OVNCluster without empty fields.
func (p *proposal) manifest() (map[string]any, error) {
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&p.spec)
	if err != nil {
		return nil, fmt.Errorf("encode the OVNCluster: %w", err)
	}
	unstructured.RemoveNestedField(spec, "central", "backup") // an encoded zero interval would turn backups off
	prune(spec)
	return map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "OVNCluster",
		"metadata": map[string]any{"name": v1alpha1.OVNClusterName}, "spec": spec,
	}, nil
}

// prune removes empty maps, which the types encode.
func prune(m map[string]any) {
	for key, value := range m {
		if inner, is := value.(map[string]any); is {
			if prune(inner); len(inner) == 0 {
				delete(m, key)
			}
		}
	}
}
