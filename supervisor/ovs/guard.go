// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/portguard"
)

const (
	// guardTable is the guard's nftables table, in the inet family.
	guardTable = "kiln-databases"
	// guardRefresh is the interval of comparisons of the guard's table: another program may have flushed it.
	guardRefresh = time.Minute
	// databasePorts are the ports of the databases for clients and for Raft. Members of 2c371fbd, the first version to upgrade from, also serve clients at 6645;
	// an upgrade replaces the guards before them.
	databasePorts = "{ 6641-6645, 6649 }"
	// podsInterface is the interface on which packets of pods reach their node.
	podsInterface = "ovn0"
	// newConnections is the rate of new connections of one source to the databases of a node. ovsdb-server has one thread for handshakes and
	// requests: 270 handshakes per second slow it by a factor of ten. A client makes a few connections after a failure.
	newConnections = "20/second burst 60 packets"
	// maxSources is how many sources have a rate of their own, for each family.
	maxSources = 65535
)

// guardedPorts are the database ports that only some nodes may reach, with their permitted peers. ovsdb-server authenticates its
// peers only by CA, and has one list of CAs for all ports. Without the guard a node's key would give access to the southbound
// database's Raft port and to its port without an RBAC role.
var guardedPorts = []struct {
	name  string
	ports []int
	peers func(limits) []string
}{
	{"northbound", []int{6643}, func(l limits) []string { return l.Northbound }},
	{"southbound", []int{6644}, func(l limits) []string { return l.Southbound }},
	{"clients", []int{6641, 6645, 6649}, func(l limits) []string { return l.Clients }},
}

// limits are the content of the table, and of the file that preserves it.
type limits struct {
	// Northbound and Southbound are the addresses of members, Clients are the addresses of nodes of northd and kube-ovn-controller.
	Northbound []string `json:"northbound,omitempty"`
	Southbound []string `json:"southbound,omitempty"`
	Clients    []string `json:"clients,omitempty"`
	// Member is set if this node holds a member of a database.
	Member bool `json:"member,omitempty"`
}

// limitsOf returns the limits of a node; nil if the ports are open.
func limitsOf(cluster *v1alpha1.OVNCluster, node string) *limits {
	if cluster.Spec.Central.PortAccess == v1alpha1.PortAccessOpen {
		return nil
	}
	l := &limits{Clients: cluster.Status.Clients}
	for _, db := range []struct {
		members   []v1alpha1.DatabaseMember
		addresses *[]string
	}{{cluster.Status.Northbound.Members, &l.Northbound}, {cluster.Status.Southbound.Members, &l.Southbound}} {
		for _, m := range db.members {
			*db.addresses = append(*db.addresses, m.Address)
			l.Member = l.Member || m.Node == node
		}
	}
	return l
}

// guard restricts, with nftables, which addresses reach the database ports of this node, and the rate of their connections. It rejects connections with
// a TCP reset instead of dropping them, so that a client that is blocked by mistake fails at once. A port with an empty list of peers is not
// restricted to peers: the operator records peers in status before they connect. On every node it also rejects connections of pods to databases: source
// NAT would make them connections of the node.
type guard struct {
	// file preserves the limits over a reboot, and runtime is the directory in which the databases read that the table exists (portguard). Both
	// are empty in tests.
	file, runtime string
	refresh       time.Duration
	log           logr.Logger
	// known is true once an OVNCluster or the file was read. Until then the table of a previous process stays.
	known bool
	// limits are the newest ones; nil if the ports are open.
	limits *limits
	// written is the last transaction, empty if it failed. objects are those of the table after the last one that succeeded (tableObjects).
	written string
	objects []string
	nft     knftables.Interface
	// applied is set if the last attempt to apply the limits succeeded. rewritten counts changes by other programs that were reverted.
	applied   atomic.Bool
	rewritten atomic.Int64
}

func newGuard(o Options) *guard {
	return &guard{file: filepath.Join(o.certificates(), "databases-guard.json"), runtime: o.OVNRunDir, refresh: guardRefresh, log: o.Log}
}

// restore writes the table of the last process, before the API server can be reached and before anything else can fail. Without the file it does nothing.
func (g *guard) restore(ctx context.Context) error {
	content, err := os.ReadFile(g.file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the limits of the databases' ports: %w", err)
	}
	l := &limits{}
	if err := json.Unmarshal(content, l); err != nil {
		return fmt.Errorf("read the limits of the databases' ports from %s: %w", g.file, err)
	}
	g.known, g.limits = true, l
	return g.apply(ctx)
}

// follow takes the limits from the OVNCluster. One without members, such as one that was just created again, changes no limits: the databases may run.
func (g *guard) follow(cluster *v1alpha1.OVNCluster, node string) {
	l := limitsOf(cluster, node)
	if l != nil && len(l.Northbound)+len(l.Southbound) == 0 {
		return
	}
	g.known, g.limits = true, l
}

// apply makes the table what the limits say, if the limits or another program have changed, and then preserves and reports it. It is idempotent, and starts
// no program if nothing has changed.
func (g *guard) apply(ctx context.Context) (err error) {
	if !g.known {
		return nil
	}
	defer func() { g.applied.Store(err == nil) }()
	if err := g.ensureTable(ctx); err != nil {
		return errors.Join(fmt.Errorf("guard the databases' ports: %w", err), g.reportFailure(err))
	}
	return errors.Join(g.preserve(), g.report())
}

func (g *guard) ensureTable(ctx context.Context) error {
	if g.nft == nil {
		nft, err := knftables.New(knftables.InetFamily, guardTable)
		if err != nil {
			return err
		}
		g.nft = nft
	}
	tx := g.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{}) // in one transaction, so that the table is never missing
	before := tx.NumOperations()
	if g.limits != nil {
		addGuard(tx, *g.limits)
	}
	if tx.String() == g.written {
		have, err := tableObjects(guardTable)
		if err != nil || slices.Equal(have, g.objects) {
			return err
		}
		g.rewritten.Add(1)
		g.log.Info("another program has changed the nftables table that limits the access to the databases' ports; writing it again", "table", guardTable)
	}
	return g.write(ctx, tx, tx.NumOperations()-before)
}

// write replaces the table by one with a number of objects.
func (g *guard) write(ctx context.Context, tx *knftables.Transaction, count int) error {
	g.written = ""
	if g.limits == nil || !g.limits.Member {
		if err := g.withdraw(); err != nil {
			return err
		}
	}
	if err := g.nft.Run(ctx, tx); err != nil {
		return err
	}
	objects, err := tableObjects(guardTable)
	if err != nil {
		return err
	}
	if len(objects) != count {
		return fmt.Errorf("table %s has %d objects after %d were written: another program has changed it", guardTable, len(objects), count)
	}
	g.written, g.objects = tx.String(), objects
	return nil
}

func (g *guard) withdraw() error {
	if g.runtime == "" {
		return nil
	}
	return portguard.Withdraw(g.runtime)
}

// member reports whether the databases of this node have to learn the state of the table.
func (g *guard) member() bool { return g.runtime != "" && g.limits != nil && g.limits.Member }

// report reports the table to the databases of this node. A member that waits for it must not depend on the disk that preserve needs.
func (g *guard) report() error {
	if !g.member() {
		return nil
	}
	return portguard.Report(g.runtime)
}

// reportFailure replaces the report by the reason why the table cannot be written, unless the table with earlier limits still exists.
func (g *guard) reportFailure(why error) error {
	if !g.member() {
		return nil
	}
	if have, err := tableObjects(guardTable); err == nil && len(have) > 0 && slices.Equal(have, g.objects) {
		return nil
	}
	return portguard.Fail(g.runtime, why.Error())
}

// preserve writes the file, or removes it.
func (g *guard) preserve() error {
	if g.file == "" {
		return nil
	}
	if g.limits == nil {
		if err := os.Remove(g.file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("forget the limits of the databases' ports: %w", err)
		}
		return nil
	}
	var have limits
	if content, err := os.ReadFile(g.file); err == nil && json.Unmarshal(content, &have) == nil && reflect.DeepEqual(have, *g.limits) {
		return nil
	}
	if err := g.save(); err != nil {
		return fmt.Errorf("preserve the limits of the databases' ports over a reboot: %w", err)
	}
	return nil
}

func (g *guard) save() error {
	content, err := json.Marshal(g.limits)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(g.file), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(g.file+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(g.file+".new", g.file)
}

// Chains of the table: connections to this node, and connections of pods to this node and to others.
const (
	chainArriving  = "input"
	chainFromPods  = "pods-input"
	chainForwarded = "pods-forward"
)

func addGuard(tx *knftables.Transaction, l limits) {
	tx.Add(&knftables.Table{Comment: new("clients that may reach the databases")})
	addPods(tx, l)
	if l.Member {
		addPeers(tx, l)
	}
}

// addPods rejects connections of pods to the databases of all nodes.
func addPods(tx *knftables.Transaction, l limits) {
	addSets(tx, "databases", append(slices.Clone(l.Northbound), l.Southbound...))
	for _, c := range []struct {
		name string
		hook knftables.BaseChainHook
	}{{chainFromPods, knftables.InputHook}, {chainForwarded, knftables.ForwardHook}} {
		tx.Add(&knftables.Chain{Name: c.name, Type: new(knftables.FilterType), Hook: new(c.hook), Priority: new(knftables.FilterPriority)})
		for _, f := range []struct{ key, suffix string }{{"ip", "4"}, {"ip6", "6"}} {
			tx.Add(&knftables.Rule{
				Chain: c.name, Rule: knftables.Concat("iifname", podsInterface, f.key, "daddr @databases"+f.suffix, "tcp dport", databasePorts, "reject with tcp reset"),
			})
		}
	}
}

// addPeers restricts the ports of this node.
func addPeers(tx *knftables.Transaction, l limits) {
	tx.Add(&knftables.Chain{
		Name: chainArriving, Type: new(knftables.FilterType), Hook: new(knftables.InputHook), Priority: new(knftables.FilterPriority),
	})
	add := func(why string, parts ...any) {
		r := &knftables.Rule{Chain: chainArriving, Rule: knftables.Concat(parts...)}
		if why != "" {
			r.Comment = &why
		}
		tx.Add(r)
	}
	add("", "tcp dport != "+databasePorts+" accept")
	add("the node itself", "fib saddr type local accept")
	for _, g := range guardedPorts {
		peers := g.peers(l)
		if len(peers) == 0 {
			continue
		}
		addSets(tx, g.name, peers)
		for _, p := range g.ports {
			port := strconv.Itoa(p)
			add("", "ip saddr != @"+g.name+"4 tcp dport "+port+" reject with tcp reset")
			add("", "ip6 saddr != @"+g.name+"6 tcp dport "+port+" reject with tcp reset")
		}
	}
	for _, f := range []struct{ key, suffix, addresses string }{{"ip", "4", "ipv4_addr"}, {"ip6", "6", "ipv6_addr"}} {
		tx.Add(&knftables.Set{
			Name: "sources" + f.suffix, Type: f.addresses, Flags: []knftables.SetFlag{knftables.DynamicFlag, knftables.TimeoutFlag},
			Timeout: new(time.Minute), Size: new(uint64(maxSources)),
		})
		add("sources that connect too often", "tcp flags & (fin|syn|rst|ack) == syn update @sources"+f.suffix,
			"{", f.key, "saddr limit rate over", newConnections, "} reject with tcp reset")
	}
}

// addSets adds the two sets of a list of addresses.
func addSets(tx *knftables.Transaction, name string, addresses []string) {
	tx.Add(&knftables.Set{Name: name + "4", Type: "ipv4_addr"})
	tx.Add(&knftables.Set{Name: name + "6", Type: "ipv6_addr"})
	seen := map[netip.Addr]bool{}
	for _, text := range addresses {
		a, err := netip.ParseAddr(text)
		if a = a.Unmap(); err != nil || seen[a] {
			continue
		}
		seen[a] = true
		tx.Add(&knftables.Element{Set: name + map[bool]string{true: "4", false: "6"}[a.Is4()], Key: []string{a.String()}})
	}
}
