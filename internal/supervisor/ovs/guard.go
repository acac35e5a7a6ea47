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

	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/supervisor/portguard"
)

const (
	// guardTable is the guard's nftables table, in the inet family.
	guardTable = "kiln-databases"
	// guardRefresh is the interval in which tables are written again for which no event reports that another program has flushed them.
	guardRefresh = time.Minute
	// databasePorts are the ports of the databases for clients and for Raft.
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
	// known is true once an OVNCluster or the file was read. Until then the table of a previous process stays.
	known bool
	// limits are the newest ones; nil if the ports are open.
	limits *limits
	// applied is the last transaction that succeeded; empty after a failure.
	applied string
	// touched is set when another transaction has deleted the table.
	touched atomic.Bool
	nft     knftables.Interface
}

func newGuard(o Options) *guard {
	return &guard{file: filepath.Join(o.certificates(), "databases-guard.json"), runtime: o.OVNRunDir}
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

// apply makes the table what the limits say. It is idempotent, and starts no program if nothing has changed.
func (g *guard) apply(ctx context.Context) error {
	if !g.known {
		return nil
	}
	if g.nft == nil {
		nft, err := knftables.New(knftables.InetFamily, guardTable)
		if err != nil {
			return fmt.Errorf("guard the databases' ports: %w", err)
		}
		g.nft = nft
	}
	tx := g.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{}) // in one transaction, so that the table is never missing
	if g.limits != nil {
		addGuard(tx, *g.limits)
	}
	if g.touched.Swap(false) && !g.exists(ctx) {
		g.applied = ""
	}
	if tx.String() == g.applied {
		return nil
	}
	g.applied = ""
	if g.limits == nil || !g.limits.Member {
		if err := g.withdraw(); err != nil {
			return err
		}
	}
	if err := g.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("guard the databases' ports: %w", err)
	}
	if err := g.preserve(); err != nil {
		return err
	}
	g.applied = tx.String()
	return nil
}

// exists reports whether the table has its chains.
func (g *guard) exists(ctx context.Context) bool {
	chains, err := g.nft.List(ctx, "chains")
	return err == nil && slices.Contains(chains, chainForwarded)
}

func (g *guard) withdraw() error {
	if g.runtime == "" {
		return nil
	}
	return portguard.Withdraw(g.runtime)
}

// preserve writes the file, or removes it, and reports the table to the databases of this node.
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
	if content, err := os.ReadFile(g.file); err != nil || json.Unmarshal(content, &have) != nil || !reflect.DeepEqual(have, *g.limits) {
		if err := g.save(); err != nil {
			return fmt.Errorf("preserve the limits of the databases' ports: %w", err)
		}
	}
	if g.limits.Member {
		return portguard.Report(g.runtime)
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
