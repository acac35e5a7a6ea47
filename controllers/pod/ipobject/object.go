// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipobject

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// PortOf returns the port of a pod's IP object. It returns false for IP objects of nodes, of other networks of a pod, and without a pod.
func PortOf(ip *kubeovnv1.IP) (kubeovnv1.Port, bool) {
	port := kubeovnv1.NewPort(ip.Spec.Namespace, ip.Spec.PodName, kubeovnv1.ProviderOVN)
	return port, port.Namespace != "" && port.Name == ip.Name
}

// passing are the labels that an IP object loses if they are not wanted.
var passing = []string{kubeovnv1.LabelNode, kubeovnv1.LabelStaticPod}

// OfPod returns the wanted IP object of a pod's port. node is the pod's, or "" while the pod is absent and its addresses are retained. podType is the kind of
// workload that retains them, or "".
func OfPod(port kubeovnv1.Port, node, podType string, allocation ipam.Allocation) *kubeovnv1.IP {
	ip := newIP(port.Name, allocation)
	ip.Spec.Namespace, ip.Spec.PodName, ip.Spec.NodeName = port.Namespace, port.Owner, node
	if node != "" {
		ip.Labels[kubeovnv1.LabelNode] = labelValue(node)
	}
	ip.Labels[kubeovnv1.LabelReserved] = kubeovnv1.ReservedForPod
	if ip.Spec.PodType = podType; podType != "" {
		ip.Labels[kubeovnv1.LabelReserved] = kubeovnv1.ReservedForOwner
	}
	return ip
}

// Reserved returns the wanted IP object of a reservation without a pod. It takes the names of a pod from the existing IP object.
func Reserved(have *kubeovnv1.IP, allocation ipam.Allocation) *kubeovnv1.IP {
	ip := newIP(have.Name, allocation)
	ip.Spec.Namespace, ip.Spec.PodName, ip.Spec.PodType = have.Spec.Namespace, have.Spec.PodName, have.Spec.PodType
	return ip
}

func newIP(port string, allocation ipam.Allocation) *kubeovnv1.IP {
	ip := &kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: port, Labels: make(map[string]string, 4)},
		Spec: kubeovnv1.IPSpec{
			Subnet:     allocation.Subnet,
			IPAddress:  ipfamily.Join(allocation.Addresses),
			MACAddress: allocation.MAC.String(),
		},
	}
	byFamily := map[ipfamily.Family]*string{ipfamily.IPv4: &ip.Spec.V4IPAddress, ipfamily.IPv6: &ip.Spec.V6IPAddress}
	for _, address := range allocation.Addresses {
		*byFamily[ipfamily.Of(address)] = address.String()
	}
	if subnet := labelValue(allocation.Subnet); subnet != "" {
		ip.Labels[kubeovnv1.LabelSubnet], ip.Labels[subnet] = subnet, ""
	}
	return ip
}

// labelValue returns the name, or "" if it is too long for a label.
func labelValue(name string) string {
	if len(validation.IsValidLabelValue(name)) > 0 {
		return ""
	}
	return name
}

// isUpToDate reports whether an IP object has the wanted spec and labels. A user's value ReservedAlways counts as up to date.
func isUpToDate(have, want *kubeovnv1.IP) bool {
	for _, label := range passing {
		_, has := have.Labels[label]
		if _, wanted := want.Labels[label]; has && !wanted {
			return false
		}
	}
	for label, value := range want.Labels {
		got, ok := have.Labels[label]
		if label == kubeovnv1.LabelReserved && got == kubeovnv1.ReservedAlways {
			continue
		}
		if !ok || got != value {
			return false
		}
	}
	return equality.Semantic.DeepEqual(have.Spec, specFor(have, want))
}

// changed returns have with the wanted spec and labels.
func changed(have, want *kubeovnv1.IP) *kubeovnv1.IP {
	next := have.DeepCopy()
	next.Spec = specFor(have, want)
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	for _, label := range passing {
		delete(next.Labels, label)
	}
	maps.Copy(next.Labels, want.Labels)
	if have.Labels[kubeovnv1.LabelReserved] == kubeovnv1.ReservedAlways {
		next.Labels[kubeovnv1.LabelReserved] = kubeovnv1.ReservedAlways
	}
	return next
}

// specFor returns the wanted spec, with the fields of other writers taken from have, and equal addresses in the spelling of have.
func specFor(have, want *kubeovnv1.IP) kubeovnv1.IPSpec {
	spec, is := want.Spec, have.Spec
	spec.ContainerID, spec.AttachSubnets, spec.AttachIPs, spec.AttachMACs = is.ContainerID, is.AttachSubnets, is.AttachIPs, is.AttachMACs
	for _, f := range []struct {
		have string
		want *string
	}{{is.IPAddress, &spec.IPAddress}, {is.V4IPAddress, &spec.V4IPAddress}, {is.V6IPAddress, &spec.V6IPAddress}} {
		if f.have != *f.want && sameAddresses(f.have, *f.want) {
			*f.want = f.have
		}
	}
	if is.MACAddress != spec.MACAddress && strings.EqualFold(strings.ReplaceAll(is.MACAddress, "-", ":"), spec.MACAddress) {
		spec.MACAddress = is.MACAddress
	}
	return spec
}

func sameAddresses(a, b string) bool {
	x, errX := ipfamily.ParseAddrs(a)
	y, errY := ipfamily.ParseAddrs(b)
	if errX != nil || errY != nil || len(x) != len(y) {
		return false
	}
	for _, address := range x {
		if !slices.Contains(y, address) {
			return false
		}
	}
	return true
}

// canBecome reports whether the API server accepts the change of an IP object: fields that are set are immutable.
func canBecome(have, want *kubeovnv1.IP) bool {
	is, spec := have.Spec, specFor(have, want)
	for _, f := range [][2]string{
		{is.Subnet, spec.Subnet},
		{is.Namespace, spec.Namespace},
		{is.PodName, spec.PodName},
		{is.PodType, spec.PodType},
		{is.IPAddress, spec.IPAddress},
		{is.V4IPAddress, spec.V4IPAddress},
		{is.V6IPAddress, spec.V6IPAddress},
		{is.MACAddress, spec.MACAddress},
	} {
		if f[0] != "" && f[0] != f[1] {
			return false
		}
	}
	return true
}
