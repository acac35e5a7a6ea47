// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"errors"
	"fmt"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
)

// Problem is the reason why a port gets no address, as a message for the user of its pod.
type Problem struct {
	Message string
	// Subnets are the subnets whose change may solve the problem.
	Subnets []string
	// Quiet problems cause no event on the pod: another condition reports them.
	Quiet bool
	// Full means that the subnets have no free address or port, and any address would do.
	Full bool
}

// Error is the message of the event.
func (p *Problem) Error() string { return p.Message }

// explain returns a message for the pod's user that says why a subnet cannot serve the pod; false for an error that the user did not
// cause.
func explain(subnet string, err error) (string, bool) {
	var (
		p         *Problem
		taken     *ipam.TakenError
		outside   *ipam.OutsideError
		exhausted *ipam.ExhaustedError
		ports     *ipam.PortsError
	)
	switch {
	case errors.As(err, &p):
		return p.Message, true
	case errors.As(err, &taken):
		return "AddressConflict: " + taken.Error() + ": ask for another one", true // the word is Kube-OVN's, which tools look for
	case errors.As(err, &outside):
		return outside.Error() + ": ask for one inside", true
	case errors.Is(err, ipam.ErrNotHeld):
		return "the Vip does not have its addresses yet", true
	case errors.Is(err, ipam.ErrNoPool):
		return err.Error(), true
	case errors.As(err, &ports):
		return fmt.Sprintf("subnet %s is full: %v: delete pods, or serve the namespace with another subnet", subnet, ports), true
	case errors.As(err, &exhausted) && len(exhausted.Pools) > 0:
		return err.Error() + ": delete pods, add to its ips or shorten excludeIps of the subnet", true
	case errors.As(err, &exhausted):
		return fmt.Sprintf("subnet %s is full, it has no free %s address: delete pods, enlarge its cidrBlock or shorten its excludeIps",
			subnet, exhausted.Family), true
	case errors.Is(err, ipam.ErrNoFamily):
		return fmt.Sprintf("subnet %s has no CIDR of the family in annotation %s: correct the annotation, or name another subnet", subnet, kubeovnv1.AnnotationIPFamily.Key()), true
	case errors.Is(err, ipam.ErrNoSubnet):
		return fmt.Sprintf("subnet %s is not applied yet", subnet), true
	}
	return "", false
}
