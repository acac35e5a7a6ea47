// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routergateway

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/reconciler"
)

// Reasons of the condition BFDUp.
const (
	// ReasonSessionsUp: all sessions are up.
	ReasonSessionsUp = "SessionsUp"
	// ReasonSessionsDown: a session is not up.
	ReasonSessionsDown = "SessionsDown"
)

// maxNamed limits the number of sessions in a message.
const maxNamed = 10

var sessionSeries = reconciler.NewSeries(
	prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_external_bfd_sessions", Help: "BFD sessions between external ports of a VPC's router and routers of the physical network.",
	}, []string{"vpc"}),
	prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_external_bfd_sessions_up", Help: "BFD sessions between external ports of a VPC's router and routers of the physical network that are up.",
	}, []string{"vpc"}),
)

// bfd has the BFD sessions of a VPC.
type bfd struct {
	sessions []kubeovnv1.BFDSession
	// gateways is set if the sessions with the physical routers of the external subnets are among them. depends has the physical router on whose session the default route of a family depends.
	gateways bool
	depends  map[ipfamily.Family]netip.Addr
	// monitored are the next hops of the user's routes with bfdId.
	monitored []netip.Addr
}

// bfd reads the sessions of a VPC from the database. Call it after Apply: the engine does not notify an owner during Apply.
func (r *External) bfd(in translate.ExternalInputs) bfd {
	b := bfd{depends: map[ipfamily.Family]netip.Addr{}}
	for _, port := range in.Ports {
		for _, peer := range in.Peers(port) {
			s := kubeovnv1.BFDSession{Subnet: port.Subnet, Peer: peer.String()}
			if row := northbound.Get[nb.BFD](r.Northbound, translate.ExternalBFDRef(in.Vpc, peer)); row != nil && row.Status != nil {
				s.Status = *row.Status
			}
			b.sessions = append(b.sessions, s)
			b.gateways = b.gateways || in.MonitorGateways
		}
	}
	for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
		if router := in.DependsOn(family); router.IsValid() {
			b.depends[family] = router
		}
	}
	for _, route := range in.Routes {
		if route.Monitored {
			b.monitored = append(b.monitored, route.NextHop)
		}
	}
	return b
}

// appliedBFD reads the sessions that the database has while a change of a VPC's ports fails: they run meanwhile. The routes that depend on them are not known.
func (r *External) appliedBFD(vpc *kubeovnv1.Vpc) bfd {
	before := vpc.Status.BFDSessions
	at := func(peer string) int {
		return slices.IndexFunc(before, func(s kubeovnv1.BFDSession) bool { return s.Peer == peer })
	}
	b := bfd{gateways: vpc.Status.EnableBfd}
	for _, row := range northbound.Of[nb.BFD](r.Northbound, translate.ExternalOwner(vpc.Name)) {
		s := kubeovnv1.BFDSession{Peer: row.DstIP}
		if i := at(s.Peer); i >= 0 {
			s.Subnet = before[i].Subnet
		}
		if row.Status != nil {
			s.Status = *row.Status
		}
		b.sessions = append(b.sessions, s)
	}
	slices.SortFunc(b.sessions, func(s, o kubeovnv1.BFDSession) int {
		return cmp.Or(cmp.Compare(at(s.Peer), at(o.Peer)), cmp.Compare(s.Peer, o.Peer))
	})
	return b
}

// down are the sessions that are not up.
func (b bfd) down() []kubeovnv1.BFDSession {
	return slices.DeleteFunc(slices.Clone(b.sessions), kubeovnv1.BFDSession.Up)
}

// measure exports the sessions of a VPC.
func (b bfd) measure(vpc string) {
	if len(b.sessions) == 0 {
		sessionSeries.Delete(vpc)
		return
	}
	sessionSeries.Set([]string{vpc}, float64(len(b.sessions)), float64(len(b.sessions)-len(b.down())))
}

// setStatus writes the sessions into the status of a VPC. routed are the families with a default route through an external port.
func (b bfd) setStatus(vpc *kubeovnv1.Vpc, routed []ipfamily.Family) {
	vpc.Status.EnableBfd, vpc.Status.BFDSessions = b.gateways, b.sessions
	if len(b.sessions) == 0 {
		apimeta.RemoveStatusCondition(&vpc.Status.Conditions, kubeovnv1.ConditionBFDUp)
		return
	}
	k8s.SetConditions(&vpc.Status.Conditions, vpc.Generation, b.condition(routed))
}

// condition returns the condition BFDUp.
func (b bfd) condition(routed []ipfamily.Family) metav1.Condition {
	down := b.down()
	if len(down) == 0 {
		return metav1.Condition{
			Type: kubeovnv1.ConditionBFDUp, Status: metav1.ConditionTrue, Reason: ReasonSessionsUp,
			Message: "the sessions with these routers are up: " + k8s.Some(b.sessions, maxNamed),
		}
	}
	isDown := func(peer netip.Addr) bool {
		return slices.ContainsFunc(down, func(s kubeovnv1.BFDSession) bool { return s.Peer == peer.String() })
	}
	var unused []string
	for _, family := range routed {
		if isDown(b.depends[family]) {
			unused = append(unused, "the default route of "+family.String())
		}
	}
	if slices.ContainsFunc(b.monitored, isDown) {
		unused = append(unused, "static routes with bfdId by these routers")
	}
	c := metav1.Condition{Type: kubeovnv1.ConditionBFDUp, Status: metav1.ConditionFalse, Reason: ReasonSessionsDown}
	c.Message = "no BFD session with " + k8s.Some(down, maxNamed)
	if len(unused) > 0 {
		c.Message += "; not used meanwhile: " + strings.Join(unused, ", ")
	}
	c.Message += "; check the path to the routers, and that they run BFD with the addresses of the VPC's router, or unset enableBfd and bfdId"
	return c
}
