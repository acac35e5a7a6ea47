// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package allocations

import (
	"github.com/go-logr/logr"

	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// Source is why a port got these addresses. It is a value of the key "source" in logs.
type Source string

// Sources.
const (
	// SourceRequest: an annotation or a spec names the addresses.
	SourceRequest Source = "request"
	// SourceReservation: an IP object reserves the addresses.
	SourceReservation Source = "reservation"
	// SourceVip: the pod uses the addresses of a Vip.
	SourceVip Source = "vip"
	// SourcePool: an IPPool had a free address.
	SourcePool Source = "ippool"
	// SourceSubnet: the subnet had a free address that no IPPool has.
	SourceSubnet Source = "subnet"
	// SourceRetained: the addresses stayed while the pod of a workload was absent.
	SourceRetained Source = "retained"
	// SourceStatus: the addresses are restored from the object's status.
	SourceStatus Source = "status"
	// SourceRestored: the port had the addresses before the start of this process.
	SourceRestored Source = "restored"
)

// SourceOf returns the source of an allocation for a pod.
func SourceOf(request ipam.Request) Source {
	switch {
	case request.AnyPool: // of RequestOf
		return SourceReservation
	case request.SharedBy != "":
		return SourceVip
	case len(request.Addresses) > 0:
		return SourceRequest
	case len(request.Pools) > 0:
		return SourcePool
	}
	return SourceSubnet
}

// LogGiven logs, at verbosity 1, that a port got an allocation.
func LogGiven(log logr.Logger, port string, allocation ipam.Allocation, source Source) {
	logAt1(log, "gave addresses to a port", port, allocation, "source", string(source))
}

// LogRetained logs, at verbosity 1, that a port's allocation stays although its pod is absent.
func LogRetained(log logr.Logger, port string, allocation ipam.Allocation, reason string) {
	logAt1(log, "retained the addresses of a port", port, allocation, "reason", reason)
}

// Release frees a port's allocation, if it has one, and logs the reason at verbosity 1.
func Release(log logr.Logger, allocator *ipam.Allocator, port, reason string) {
	if log.V(1).Enabled() {
		if allocation, held := allocator.Lookup(port); held {
			logAt1(log, "freed the addresses of a port", port, allocation, "reason", reason)
		}
	}
	allocator.Release(port)
}

func logAt1(log logr.Logger, message, port string, allocation ipam.Allocation, key, why string) {
	if log = log.V(1); log.Enabled() {
		log.Info(message, "port", port, "subnet", allocation.Subnet, "addresses", ipfamily.Join(allocation.Addresses), key, why)
	}
}
