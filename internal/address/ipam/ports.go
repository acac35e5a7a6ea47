// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// PortsError is ErrExhausted because the switch of a subnet has all the ports that it can have.
type PortsError struct {
	// Limit is the largest number of ports.
	Limit int
}

// Error returns the number of ports.
func (e *PortsError) Error() string {
	return fmt.Sprintf("the switch has all %d ports that it can have", e.Limit)
}

// Is makes errors.Is(e, ErrExhausted) true.
func (e *PortsError) Is(target error) bool { return target == ErrExhausted }

// LimitPorts sets the largest number of ports that the switch of each subnet can have; 0, the initial value, is no limit. Holders
// beyond a smaller limit stay. It notifies every subnet if the limit changed.
func (a *Allocator) LimitPorts(limit int) {
	if a.portLimit.Swap(int64(limit)) == int64(limit) {
		return
	}
	a.mu.RLock()
	names := slices.Collect(maps.Keys(a.subnets))
	a.mu.RUnlock()
	for _, name := range names {
		a.changed(name)
	}
}

// PortUsage is the number of ports of a subnet's switch. Addresses that are reserved or retained for an absent port count as its
// port.
type PortUsage struct {
	Used int
	// Limit is the largest number of ports, 0 if there is none.
	Limit int
}

// Full reports whether the switch can have no other port.
func (u PortUsage) Full() bool { return u.Limit > 0 && u.Used >= u.Limit }

// Ports returns the number of ports of a subnet's switch, zero for an unknown subnet.
func (a *Allocator) Ports(subnet string) PortUsage {
	s := a.subnet(subnet)
	if s == nil {
		return PortUsage{}
	}
	s.Lock()
	defer s.Unlock()
	return s.portUsage()
}

func (s *subnet) portUsage() PortUsage {
	return PortUsage{Used: s.spec.OwnPorts + s.ports, Limit: int(s.portLimit.Load())}
}

// admit returns an error if the switch has no room for the ports that a request adds to those that the holder has. A request that the
// subnet can never satisfy gets the error of check.
func (s *subnet) admit(holder string, r Request, has int) error {
	addresses := 0
	for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
		if s.wants(r, family) {
			addresses++
		}
	}
	u, needed := s.portUsage(), portsFor(holder, addresses)-has
	if u.Limit == 0 || needed <= 0 || u.Used+needed <= u.Limit {
		return nil
	}
	if err := s.check(r); err != nil {
		return err
	}
	return &PortsError{Limit: u.Limit}
}

// portsOf returns the number of ports that a holder has at most.
func portsOf(holder string, h holding) int {
	n := 0
	for _, slot := range h.slots {
		if slot != none {
			n++
		}
	}
	return portsFor(holder, n)
}

// virtualPortsPrefix begins the names of holders that can have a virtual port for each of their addresses: Vips (translate.VipHolder).
const virtualPortsPrefix = "vip/"

// portsFor returns the largest number of ports that a holder of so many addresses can have. Names of ports have no slash. Other holders than
// Vips, such as OvnEips and the queriers of multicast groups, have no port.
func portsFor(holder string, addresses int) int {
	switch {
	case strings.HasPrefix(holder, virtualPortsPrefix):
		return addresses
	case strings.Contains(holder, "/"):
		return 0
	}
	return 1
}
