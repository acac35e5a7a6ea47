// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/internal/interest"
	"github.com/kiln-net/kiln/internal/validation"
)

// ServiceClaim is the use of an OvnEip by a Service of the class kubeovnv1.ClassOvnEip, in one VPC.
type ServiceClaim struct {
	validation.ExternalClaim

	// Addresses of the OvnEip, of the families of the Service.
	Addresses []netip.Addr
	// Idle: the OvnEip is applied in another VPC. Until it is not, the claim excludes no other, however old the Service is: users choose the VPC of their pods.
	Idle bool
}

// Concerns reports whether a change of this claim can change the outcome of a claim of another Service.
func (c ServiceClaim) Concerns(other ServiceClaim) bool {
	return other.Eip == c.Eip && (other.Vpc != c.Vpc || c.SharesPort(other.ExternalClaim))
}

// AppliedElsewhere reports whether one of several claims is applied, to the OvnEip and in another VPC.
func (c ServiceClaim) AppliedElsewhere(claims []validation.ExternalClaim) bool {
	return slices.ContainsFunc(claims, func(other validation.ExternalClaim) bool {
		return other.Last && other.Eip == c.Eip && other.Vpc != c.Vpc && (other.Kind != c.Kind || other.Name != c.Name)
	})
}

// NewServiceClaim returns a claim of a Service, without its fronts.
func NewServiceClaim(service types.NamespacedName) ServiceClaim {
	return ServiceClaim{ExternalClaim: validation.ExternalClaim{Kind: validation.KindService, Name: service.String()}}
}

// ServiceClaims are the claims of Services to OvnEips. They are not read from the Services, as claims of rules are from the rules: users write Services, and nothing in them records the VPC and
// the ports that are applied. The rows in the database do, from which the controller of Services restores the claims at its start; it changes them before and after each change
// of these rows. The zero value is ready.
type ServiceClaims struct {
	mu        sync.Mutex
	claims    map[types.NamespacedName][]ServiceClaim
	services  interest.Index[types.NamespacedName, string] // by `eip/NAME` and `at/VPC/ADDRESS`
	observers []func(ServiceClaim)
}

// Observe calls f with each claim that changes from now on, as it was and as it is. f must not block.
func (c *ServiceClaims) Observe(f func(ServiceClaim)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observers = append(c.observers, f)
}

// Set replaces the claims of a Service; none removes them.
func (c *ServiceClaims) Set(service types.NamespacedName, claims ...ServiceClaim) {
	changed, observers := c.set(service, claims)
	for _, claim := range changed {
		for _, f := range observers {
			f(claim)
		}
	}
}

func (c *ServiceClaims) set(service types.NamespacedName, claims []ServiceClaim) ([]ServiceClaim, []func(ServiceClaim)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.claims[service]
	if len(claims) == 0 {
		delete(c.claims, service)
	} else {
		if c.claims == nil {
			c.claims = map[types.NamespacedName][]ServiceClaim{}
		}
		c.claims[service] = claims
	}
	var keys []string
	for _, claim := range claims {
		keys = append(keys, "eip/"+claim.Eip)
		for _, a := range claim.Addresses {
			keys = append(keys, InsideKey(claim.Vpc, a.String()))
		}
	}
	c.services.Set(service, keys...)
	in := func(list []ServiceClaim) func(ServiceClaim) bool {
		return func(claim ServiceClaim) bool {
			return slices.ContainsFunc(list, func(other ServiceClaim) bool { return reflect.DeepEqual(claim, other) })
		}
	}
	changed := append(slices.DeleteFunc(slices.Clone(before), in(claims)), slices.DeleteFunc(slices.Clone(claims), in(before))...)
	return changed, slices.Clone(c.observers)
}

// Of returns the claims of Services to an OvnEip that are not idle, in no order.
func (c *ServiceClaims) Of(eip string) []validation.ExternalClaim {
	var claims []validation.ExternalClaim
	for _, claim := range c.with("eip/" + eip) {
		if claim.Eip == eip {
			claims = append(claims, claim.ExternalClaim)
		}
	}
	return claims
}

// At returns the claims of Services to an address in a VPC that are not idle, in no order.
func (c *ServiceClaims) At(vpc string, address netip.Addr) []ServiceClaim {
	return slices.DeleteFunc(c.with(InsideKey(vpc, address.String())), func(claim ServiceClaim) bool {
		return claim.Vpc != vpc || !slices.Contains(claim.Addresses, address)
	})
}

func (c *ServiceClaims) with(key string) []ServiceClaim {
	var claims []ServiceClaim
	services := c.services.Of(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, service := range services {
		for _, claim := range c.claims[service] {
			if !claim.Idle {
				claims = append(claims, claim)
			}
		}
	}
	return claims
}

// OfService returns the claims of a Service.
func (c *ServiceClaims) OfService(service types.NamespacedName) []ServiceClaim {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.claims[service]
}

// ServicesOf returns the Services that claim an OvnEip, in no order.
func (c *ServiceClaims) ServicesOf(eip string) []types.NamespacedName {
	return c.services.Of("eip/" + eip)
}
