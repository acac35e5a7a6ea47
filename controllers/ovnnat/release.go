// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// A translation that is withdrawn leaves connections behind that nodes track: while a client outside sends packets, Open vSwitch translates them as before, also
// after the address has another owner. So each withdrawn translation is recorded in the status of its OvnEip first (release). The controller of OvnEips requests
// from the nodes that they end the connections, and deletes the record when they have confirmed it. Until then the address gets no translation that the old connections
// contradict (pending), except for the pod of the same rule that was created again: it must not wait for a node that failed. A translation that is applied again before
// the nodes have confirmed takes its record over (resumed): no node would ever be without its flows. Nodes that do not exist stay in the record (takenOver): one that returns has
// connections of a translation that may have been withdrawn again.

// Numbers of former translations, so that rules that change again and again do not fill the status of an OvnEip while a node does not confirm: with maxReleasing of all rules
// the OvnEip gets no further translation, except of a rule that only follows its pod, and with maxOfRule of its own a rule gets none. Withdrawals are always recorded.
const (
	maxReleasing = kubeovnv1.MaxConnectionFlushes
	maxOfRule    = maxReleasing / 4
)

// releasingKey is the key in contending of the rules that wait for a former translation of an OvnEip.
func releasingKey(eip string) string { return "releasing/" + eip }

// applied returns the applied rows of a rule.
func (r *controller) applied(name string) []translate.Translated {
	owner := translate.OvnNATOwner(r.kind, name)
	var rows []translate.Translated
	for _, row := range northbound.Of[nb.NAT](r.Northbound, owner) {
		rows = append(rows, translate.TranslatedBy(row))
	}
	for _, row := range northbound.Of[nb.LoadBalancer](r.Northbound, owner) {
		rows = append(rows, translate.TranslatedBy(row))
	}
	return rows
}

// occupiedRetry is the interval of attempts while another owner still has rows of the same address.
const occupiedRetry = time.Second

// occupant returns another OvnFip, OvnSnatRule or OvnDnatRule with applied rows that exclude one of the added translations; "" for none. Claims decide which rule has an
// address. This one withdraws its rows when a rule with precedence gets its claim back, such as a rule whose IP was one of no pod meanwhile.
func (r *controller) occupant(name, eip string, added []translate.Translation) string {
	var found []string
	look := func(owner desired.Owner, ids map[string]string, row any) {
		if owner == translate.OvnNATOwner(r.kind, name) || !translate.OfEip(ids, eip) {
			return
		}
		for _, t := range translate.TranslatedBy(row).Translations {
			if excludesAny(t, added) {
				found = append(found, owner.Kind+" "+owner.Name)
			}
		}
	}
	for _, kind := range kubeovnv1.NATKinds {
		northbound.Each(r.Northbound, kind.Kind, func(owner desired.Owner, row *nb.NAT) { look(owner, row.ExternalIDs, row) })
		northbound.Each(r.Northbound, kind.Kind, func(owner desired.Owner, row *nb.LoadBalancer) { look(owner, row.ExternalIDs, row) })
	}
	if len(found) == 0 {
		return ""
	}
	return slices.Min(found)
}

func excludesAny(t translate.Translation, others []translate.Translation) bool {
	return slices.ContainsFunc(others, func(o translate.Translation) bool { return excludes(t, o) })
}

// excludes reports whether two translations of different rules cannot be applied at once, as validation.ExternalConflict decides for the claims of one OvnEip.
func excludes(a, b translate.Translation) bool {
	if a.Address != b.Address {
		return false
	}
	whole := func(t translate.Translation) bool { return !t.Source && t.Protocol == "" }
	switch {
	case a.Vpc != b.Vpc || whole(a) || whole(b):
		return true
	case a.Source || b.Source:
		return a.Source && b.Source && a.Internal == b.Internal
	}
	return a.Protocol == b.Protocol && a.Port == b.Port
}

func translationsOf(rows []translate.Translated) []translate.Translation {
	var all []translate.Translation
	for _, row := range rows {
		all = append(all, row.Translations...)
	}
	return all
}

func translationsIn(rows []desired.Row) []translate.Translation {
	var all []translate.Translation
	for _, row := range rows {
		all = append(all, translate.TranslatedBy(row.Model).Translations...)
	}
	return all
}

// without returns the translations that are not among others.
func without(all, others []translate.Translation) []translate.Translation {
	return slices.DeleteFunc(slices.Clone(all), func(t translate.Translation) bool { return slices.Contains(others, t) })
}

// nodes returns the nodes that may track connections of translations: hosts of the router's port, known nodes that still exist, and the node of the pod. A node
// that no longer hosts the port may host it again before its connections end.
func (r *controller) nodes(ctx context.Context, known []string, vpc, subnet, pods string) ([]string, error) {
	nodes := r.chassis(vpc, subnet)
	if pods != "" {
		nodes = append(nodes, pods)
	}
	for _, name := range known {
		if slices.Contains(nodes, name) {
			continue
		}
		node, err := k8s.Find[corev1.Node](ctx, r.Client, client.ObjectKey{Name: name}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("get node %s: %w", name, err)
		}
		if node != nil {
			nodes = append(nodes, name)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}

// knownNodes returns the nodes of applied rows and of records.
func knownNodes(applied []translate.Translated, records map[string]kubeovnv1.OvnEipRelease) []string {
	var nodes []string
	for _, row := range applied {
		nodes = append(nodes, row.Nodes...)
	}
	for _, release := range records {
		nodes = slices.Concat(nodes, release.Nodes, release.Absent)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// chassis returns the nodes that can host the port of a VPC's router in an external subnet.
func (r *controller) chassis(vpc, subnet string) []string {
	port := northbound.Get[nb.LogicalRouterPort](r.Northbound, translate.ExternalPortRef(vpc, subnet))
	if port == nil {
		return nil
	}
	var nodes []string
	for _, chassis := range northbound.Of[nb.GatewayChassis](r.Northbound, translate.ExternalOwner(vpc)) {
		if chassis.Name == port.Name+"_"+chassis.ChassisName {
			nodes = append(nodes, chassis.ChassisName)
		}
	}
	return nodes
}

// release records the applied translations of a rule that rows do not contain. Call it before the rows are replaced.
func (r *controller) release(ctx context.Context, name string, rows []desired.Row) error {
	wanted := translationsIn(rows)
	released := map[string][]kubeovnv1.OvnEipRelease{} // by OvnEip
	for _, row := range r.applied(name) {
		for _, t := range without(row.Translations, wanted) {
			if row.Eip != "" {
				release := releaseOf(r.kind+" "+name, t, row.Nodes)
				release.EgressAddress = row.Egress
				released[row.Eip] = append(released[row.Eip], release)
			}
		}
	}
	for eip, releases := range released {
		if err := r.records.add(ctx, eip, releases, func(all []kubeovnv1.OvnEipRelease) error { return r.record(ctx, eip, all) }); err != nil {
			return fmt.Errorf("record the former translations of OvnEip %s: %w", eip, err)
		}
	}
	return nil
}

// record adds former translations to the status of an OvnEip.
func (r *controller) record(ctx context.Context, name string, released []kubeovnv1.OvnEipRelease) error {
	eip, err := k8s.Find[kubeovnv1.OvnEip](ctx, r.Live, client.ObjectKey{Name: name})
	if err != nil || eip == nil {
		return err
	}
	for i := range released { // also the nodes that host the port since the rows were written
		released[i].Nodes = append(slices.Clone(released[i].Nodes), r.chassis(released[i].VPC, lookup.ExternalOfEip(eip))...)
	}
	return r.patchReleasing(ctx, eip, recorded(eip.Status.Releasing, released))
}

// patchReleasing changes entries of status.releasing, by ID; nil deletes one. It patches these keys only, because other controllers write others.
func (r *controller) patchReleasing(ctx context.Context, eip *kubeovnv1.OvnEip, changes map[string]*kubeovnv1.OvnEipRelease) error {
	if len(changes) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"releasing": changes}})
	if err != nil {
		return err
	}
	return client.IgnoreNotFound(r.Client.Status().Patch(ctx, eip.DeepCopy(), client.RawPatch(types.MergePatchType, patch), k8s.FieldOwner))
}

// recorded returns the changes of status.releasing that record former translations. Each gets a new ID: a node that has confirmed an earlier withdrawal of the same
// translation has not confirmed this one. The record of an earlier withdrawal is replaced, and its nodes are in the new one.
func recorded(earlier map[string]kubeovnv1.OvnEipRelease, released []kubeovnv1.OvnEipRelease) map[string]*kubeovnv1.OvnEipRelease {
	changes := map[string]*kubeovnv1.OvnEipRelease{}
	for _, release := range released {
		hash := hashOf(former(release))
		for id, before := range earlier {
			if hashIn(id) == hash {
				changes[id] = nil
				release.Nodes, release.Absent = union(release.Nodes, before.Nodes), union(release.Absent, before.Absent)
			}
		}
		release.Nodes = union(release.Nodes)
		changes[newID(hash)] = &release
	}
	return changes
}

// takenOver returns the changes of status.releasing for translations that are applied again, with these nodes in their rows. The other nodes of a record do not exist: they
// stay in it as absent ones. A record that changes gets a new ID, because another controller may have deleted it.
func takenOver(again map[string]kubeovnv1.OvnEipRelease, nodes []string) map[string]*kubeovnv1.OvnEipRelease {
	changes := map[string]*kubeovnv1.OvnEipRelease{}
	for id, release := range again {
		absent := slices.DeleteFunc(union(release.Nodes, release.Absent), func(name string) bool { return slices.Contains(nodes, name) })
		if len(release.Nodes) == 0 && slices.Equal(absent, release.Absent) {
			continue
		}
		changes[id] = nil
		if len(absent) > 0 {
			release.Nodes, release.Absent = nil, absent
			changes[newID(hashIn(id))] = &release
		}
	}
	return changes
}

// union returns the names in lists, sorted.
func union(lists ...[]string) []string {
	names := slices.Concat(lists...)
	slices.Sort(names)
	return slices.Compact(names)
}

func releaseOf(rule string, t translate.Translation, nodes []string) kubeovnv1.OvnEipRelease {
	return kubeovnv1.OvnEipRelease{
		Rule: rule, VPC: t.Vpc, Address: t.Address.String(), Internal: t.Internal.String(), Source: t.Source, Protocol: t.Protocol, Port: int32(t.Port),
		Nodes: nodes, Since: metav1.Now(),
	}
}

// former returns the translation of a record.
func former(release kubeovnv1.OvnEipRelease) translate.Translation {
	t := translate.Translation{Vpc: release.VPC, Source: release.Source, Protocol: release.Protocol, Port: uint16(release.Port)} //nolint:gosec // releaseOf wrote it
	t.Address, _ = netip.ParseAddr(release.Address)
	t.Internal, _ = netip.ParsePrefix(release.Internal)
	return t
}

// hashOf is the first part of the IDs of a translation.
func hashOf(t translate.Translation) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%t\x00%s\x00%d", t.Vpc, t.Address, t.Internal, t.Source, t.Protocol, t.Port))
	return hex.EncodeToString(sum[:8])
}

// newID returns an ID for a record of a translation.
func newID(hash string) string { return hash + "-" + strconv.FormatInt(time.Now().UnixNano(), 36) }

func hashIn(id string) string {
	hash, _, _ := strings.Cut(id, "-")
	return hash
}

// resumed returns the records of former translations that are applied again.
func resumed(releasing map[string]kubeovnv1.OvnEipRelease, applied []translate.Translation) map[string]kubeovnv1.OvnEipRelease {
	found := map[string]kubeovnv1.OvnEipRelease{}
	if len(releasing) == 0 {
		return found
	}
	for _, t := range applied {
		hash := hashOf(t)
		for id, release := range releasing {
			if hashIn(id) == hash {
				found[id] = release
			}
		}
	}
	return found
}

// pending describes the nodes that one of the added translations waits for; "" for none. follows is set if the rule is unchanged, and may disregard its own former
// translations and the number of all. Pods of one EgressAddress have the address together, so their rules do not wait for one another.
func pending(releasing map[string]kubeovnv1.OvnEipRelease, rule *lookup.NATRule, follows bool, added []translate.Translation) string {
	self := rule.Kind + " " + rule.GetName()
	var all, own []kubeovnv1.OvnEipRelease
	for _, release := range lookup.Awaited(releasing) {
		if all = append(all, release); release.Rule == self {
			own = append(own, release)
		}
	}
	switch {
	case len(own) >= maxOfRule:
		return fmt.Sprintf("nodes %s to end the connections of some of the %d former translations of the rule%s", nodesOf(own), len(own), until(own))
	case len(all) >= maxReleasing && !follows:
		return fmt.Sprintf("nodes %s to end the connections of some of the %d former translations of the OvnEip%s", nodesOf(all), len(all), until(all))
	}
	for _, release := range all {
		if follows && release.Rule == self || release.EgressAddress != "" && release.EgressAddress == rule.GetAnnotations()[kubeovnv1.EgressOfRule] {
			continue
		}
		if slices.ContainsFunc(added, func(t translate.Translation) bool { return contradicts(former(release), t) }) {
			one := []kubeovnv1.OvnEipRelease{release}
			return fmt.Sprintf("nodes %s to end the connections of %s with %s, by %s%s", nodesOf(one), release.Address, release.Internal, release.Rule, until(one))
		}
	}
	return ""
}

// nodesOf returns the nodes that former translations wait for.
func nodesOf(releases []kubeovnv1.OvnEipRelease) string {
	var nodes []string
	for _, release := range releases {
		nodes = append(nodes, release.Nodes...)
	}
	slices.Sort(nodes)
	return strings.Join(slices.Compact(nodes), ", ")
}

// until is the end of a message about former translations: how the wait for their nodes ends.
func until(releases []kubeovnv1.OvnEipRelease) string { return ": " + lookup.UntilReleased(releases) }

// contradicts reports whether packets of connections of a former translation can belong to another one: of a floating address all, of sources the answers, of a port
// those to the port.
func contradicts(before, t translate.Translation) bool {
	if before.Address != t.Address || before == t {
		return false
	}
	whole := func(t translate.Translation) bool { return !t.Source && t.Protocol == "" }
	switch {
	case whole(before) || whole(t):
		return true
	case before.Source || t.Source:
		return before.Source && t.Source
	}
	return before.Protocol == t.Protocol && before.Port == t.Port
}
