// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package allocations

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// IsReservation reports whether an IP object reserves its addresses on request of a user, whether its pod exists or not.
func IsReservation(ip *kubeovnv1.IP) bool {
	if ip == nil || ip.DeletionTimestamp != nil {
		return false
	}
	if reserved, labelled := ip.Labels[kubeovnv1.LabelReserved]; labelled {
		return reserved == kubeovnv1.ReservedAlways
	}
	_, recorded := ip.Labels[kubeovnv1.LabelNode]
	return !recorded
}

// NamesOther reports whether an IP object names the owner of another port that has the same name as the port.
func NamesOther(ip *kubeovnv1.IP, port kubeovnv1.Port) bool {
	if ip == nil {
		return false
	}
	named, valid := kubeovnv1.NamedPort(ip.Spec.Namespace, ip.Spec.PodName, ip.Name)
	return valid && named != port
}

// RequestOf returns the allocation request of an IP object, or an error that tells its user what to change.
func RequestOf(ip *kubeovnv1.IP) (ipam.Request, error) {
	request := ipam.Request{Subnet: ip.Spec.Subnet, AnyPool: true}
	if request.Subnet == "" {
		return request, errors.New("spec.subnet is empty: say which subnet to reserve addresses of")
	}
	for _, list := range []string{ip.Spec.IPAddress, ip.Spec.V4IPAddress, ip.Spec.V6IPAddress} {
		addresses, err := ipfamily.ParseAddrs(list)
		if err != nil {
			return request, err
		}
		for _, address := range addresses {
			if !slices.Contains(request.Addresses, address) {
				request.Addresses = append(request.Addresses, address)
			}
		}
	}
	if ip.Spec.MACAddress != "" {
		mac, err := kubeovnv1.ParseMAC(ip.Spec.MACAddress)
		if err != nil {
			return request, fmt.Errorf("spec.macAddress: %w", err)
		}
		request.MAC = mac
	}
	for _, address := range request.Addresses { // other families get no address; without addresses every family gets one
		request.Families = append(request.Families, ipfamily.Of(address))
	}
	return request, nil
}

// ThatRetain selects the IP objects that retain addresses without a pod. They are few.
func ThatRetain() client.ListOption {
	requirement, err := labels.NewRequirement(kubeovnv1.LabelReserved, selection.NotEquals, []string{kubeovnv1.ReservedForPod})
	if err != nil {
		panic(err) // impossible with these constants
	}
	return client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*requirement)}
}
