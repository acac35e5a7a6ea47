// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/testing/must"
)

func (b *Bridge) attachingMirrored(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		return b.Attach(ctx, Attachment{Name: name, LogicalPort: "lsp of " + name, ContainerID: "container of " + name, IfName: "eth0", Mirrored: true})
	}
}

// selected returns the names of the ports that the node's mirror selects. The test fails if the directions differ, or if the output port is another one.
func (b *Bridge) selected(t *testing.T) string {
	t.Helper()
	row, err := b.mirror(t.Context())
	must.Succeed(t, err)
	if row == nil {
		return "no mirror"
	}
	if !sameSet(row.SelectSrcPort, row.SelectDstPort) {
		t.Errorf("the mirror selects packets from %v and to %v", row.SelectSrcPort, row.SelectDstPort)
	}
	output, err := b.ports(t.Context(), []string{MirrorInterface})
	must.Succeed(t, err)
	if len(output) != 1 || row.OutputPort == nil || *row.OutputPort != output[0] {
		t.Errorf("the mirror's output is %v, want the port of %s, %v", row.OutputPort, MirrorInterface, output)
	}
	var names []string
	for _, uuid := range row.SelectSrcPort {
		port := &vswitch.Port{UUID: uuid}
		must.Succeed(t, b.get(t.Context(), port))
		names = append(names, port.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func (b *Bridge) wantSelected(t *testing.T, what, want string) {
	t.Helper()
	if got := b.selected(t); got != want {
		t.Errorf("%s: the mirror selects %q, want %q", what, got, want)
	}
}

func (b *Bridge) transactAs(t *testing.T, operations []ovsdb.Operation, err error) {
	t.Helper()
	must.Succeed(t, err)
	results, err := b.client.Transact(t.Context(), operations...)
	must.Succeed(t, err)
	_, err = ovsdb.CheckOperationResults(results, operations)
	must.Succeed(t, err)
}

func TestTheMirrorSelectsThePortsThatRequestIt(t *testing.T) {
	b := newBridge(t)
	must.Succeed(t, b.attachingMirrored("p0")(t.Context()))
	must.Succeed(t, b.attaching("p1", "lsp1")(t.Context()))
	b.wantSelected(t, "before the mirror exists", "no mirror")
	must.Succeed(t, b.EnsureMirror(t.Context(), false))
	b.wantSelected(t, "a mirror that is made after the ports", "p0")
	must.Succeed(t, b.attachingMirrored("p2")(t.Context()))
	must.Succeed(t, b.SetMirrored(t.Context(), "p1", true))
	must.Succeed(t, b.SetMirrored(t.Context(), "nobody", true))
	b.wantSelected(t, "ports that follow", "p0 p1 p2")
	before := sentSoFar(t)
	must.Succeed(t, b.EnsureMirror(t.Context(), false))
	must.Succeed(t, b.SetMirrored(t.Context(), "p1", true))
	must.Succeed(t, b.attachingMirrored("p2")(t.Context()))
	if sent := sentSoFar(t) - before; sent != 0 {
		t.Errorf("%d transactions for an unchanged state", sent)
	}

	must.Succeed(t, b.SetMirrored(t.Context(), "p0", false))
	must.Succeed(t, b.Detach(t.Context(), "p1"))
	b.wantSelected(t, "a port without the request, and a deleted one", "p2")
	if a, _, err := b.Find(t.Context(), "p0"); err != nil || a.Mirrored {
		t.Errorf("the record of p0: %v %v", a.Mirrored, err)
	}
	deleted, _, err := b.Find(t.Context(), "p2")
	must.Succeed(t, err)
	must.Succeed(t, b.Detach(t.Context(), "p2"))
	_, err = b.Restore(t.Context(), deleted)
	must.Succeed(t, err)
	b.wantSelected(t, "a restored port", "p2")
	must.Succeed(t, b.attaching("p2", "lsp of p2")(t.Context())) // an ADD of the same container does not know the record
	b.wantSelected(t, "a port that is attached again", "p2")
}

// Requests that come together must not lose a port: the mirror is made from the records of the ports that exist.
func TestAMirrorAndPortsThatComeTogether(t *testing.T) {
	b := newBridge(t)
	must.Succeed(t, b.attachingMirrored("leaving")(t.Context()))
	errs, _ := b.together(t, b.attachingMirrored("p0"), func(ctx context.Context) error { return b.EnsureMirror(ctx, false) },
		b.attachingMirrored("p1"), func(ctx context.Context) error { return b.SetMirrored(ctx, "leaving", false) }, b.attaching("p2", "lsp2"))
	for i, err := range errs {
		if err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	b.wantSelected(t, "together", "p0 p1")
}

func TestModesOfTheMirror(t *testing.T) {
	b := newBridge(t)
	must.Succeed(t, b.attachingMirrored("p0")(t.Context()))
	for _, all := range []bool{true, false, true} {
		must.Succeed(t, b.EnsureMirror(t.Context(), all))
		row, err := b.mirror(t.Context())
		must.Succeed(t, err)
		if row.SelectAll != all || row.ExternalIDs[keyVendor] != vendor {
			t.Errorf("with all %v: %+v", all, row)
		}
		b.wantSelected(t, "in every mode", "p0")
	}
	must.Succeed(t, b.RemoveMirror(t.Context()))
	must.Succeed(t, b.RemoveMirror(t.Context()))
	b.wantSelected(t, "removed", "no mirror")
	if ports, err := b.ports(t.Context(), []string{MirrorInterface}); err != nil || len(ports) != 0 {
		t.Errorf("the output port is still there: %v %v", ports, err)
	}
	if a, _, err := b.Find(t.Context(), "p0"); err != nil || !a.Mirrored {
		t.Errorf("the port's record without a mirror: %v %v", a.Mirrored, err)
	}
}

func TestTheMirrorIsRepaired(t *testing.T) {
	b := newBridge(t)
	must.Succeed(t, b.attachingMirrored("p0")(t.Context()))
	must.Succeed(t, b.EnsureMirror(t.Context(), false))
	for what, harm := range map[string]func(){
		"the output port is deleted": func() { must.Succeed(t, b.Detach(t.Context(), MirrorInterface)) },
		"the mirror is deleted": func() {
			row, err := b.mirror(t.Context())
			must.Succeed(t, err)
			operations, err := b.changeMirrors(t.Context(), ovsdb.MutateOperationDelete, row.UUID)
			b.transactAs(t, operations, err)
		},
		"a port is taken out": func() {
			row, err := b.mirror(t.Context())
			must.Succeed(t, err)
			operations, err := b.client.Where(row).Mutate(row, model.Mutation{Field: &row.SelectDstPort, Mutator: ovsdb.MutateOperationDelete, Value: row.SelectDstPort})
			b.transactAs(t, operations, err)
		},
		"the MTU is changed": func() {
			row, err := b.iface(t.Context(), MirrorInterface)
			must.Succeed(t, err)
			row.MTURequest = new(1500)
			operations, err := b.client.Where(row).Update(row, &row.MTURequest)
			b.transactAs(t, operations, err)
		},
	} {
		harm()
		must.Succeed(t, b.EnsureMirror(t.Context(), false))
		b.wantSelected(t, what, "p0")
		if row, err := b.iface(t.Context(), MirrorInterface); err != nil || row.MTURequest == nil || *row.MTURequest != mirrorMTU || row.Type != "internal" {
			t.Errorf("%s: %v %v", what, row, err)
		}
	}
}

// The rows of users, and Kube-OVN's mirror, which a migrated node may have.
func TestMirrorsOfOthers(t *testing.T) {
	b := newBridge(t)
	operations, err := b.client.Create(&vswitch.Mirror{UUID: "theirs", Name: "mine", SelectAll: true})
	must.Succeed(t, err)
	more, err := b.changeMirrors(t.Context(), ovsdb.MutateOperationInsert, "theirs")
	b.transactAs(t, append(operations, more...), err)

	must.Succeed(t, b.EnsureMirror(t.Context(), false))
	b.wantSelected(t, "next to others", "")
	row, err := b.mirror(t.Context())
	must.Succeed(t, err)
	row.ExternalIDs, row.Snaplen = map[string]string{"by": "kube-ovn"}, new(100)
	operations, err = b.client.Where(row).Update(row, &row.ExternalIDs, &row.Snaplen)
	b.transactAs(t, operations, err)
	must.Succeed(t, b.RemoveMirror(t.Context()))
	if bridge, err := b.row(t.Context()); err != nil || len(bridge.Mirrors) != 2 {
		t.Errorf("mirrors %v, %v: one that the agent did not make was removed", bridge.Mirrors, err)
	}
	must.Succeed(t, b.EnsureMirror(t.Context(), true))
	if row, err = b.mirror(t.Context()); err != nil || row.ExternalIDs["by"] != "kube-ovn" || row.ExternalIDs[keyVendor] != vendor || row.Snaplen == nil {
		t.Errorf("taken over: %+v %v", row, err)
	}

	must.Succeed(t, b.RemoveMirror(t.Context()))
	must.Succeed(t, b.commit(t.Context(), nil, func(ctx context.Context, prefix string) (c change, err error) {
		err = b.insert(ctx, &c, &vswitch.Interface{Name: MirrorInterface}, &vswitch.Port{}, prefix)
		return c, err
	}))
	if err := b.EnsureMirror(t.Context(), false); err == nil || !strings.Contains(err.Error(), "no internal port of br-int") {
		t.Errorf("with a network card of that name: %v", err)
	}
	must.Succeed(t, b.RemoveMirror(t.Context()))
	if ports, err := b.ports(t.Context(), []string{MirrorInterface}); err != nil || len(ports) != 1 {
		t.Errorf("the port of another program: %v %v", ports, err)
	}
}

func TestManyMirroredPortsShareFewTransactions(t *testing.T) {
	b := newBridge(t)
	must.Succeed(t, b.EnsureMirror(t.Context(), false))
	var requests []func(context.Context) error
	for i := range 20 {
		requests = append(requests, b.attaching(fmt.Sprintf("p%d", i), fmt.Sprintf("lsp%d", i)))
	}
	errs, sent := b.together(t, append(requests, b.attachingMirrored("m"))...)
	for i, err := range errs {
		if err != nil {
			t.Errorf("port %d: %v", i, err)
		}
	}
	if sent != 1 {
		t.Errorf("%d transactions", sent)
	}
	b.wantSelected(t, "one of many", "m")
}

func TestMirrorsThatOpenvSwitchDoesNotServe(t *testing.T) {
	b := newBridge(t)
	for i := range MaxMirrors {
		name := fmt.Sprint("user", i)
		operations, err := b.client.Create(&vswitch.Mirror{UUID: name, Name: name})
		must.Succeed(t, err)
		more, err := b.changeMirrors(t.Context(), ovsdb.MutateOperationInsert, name)
		b.transactAs(t, append(operations, more...), err)
	}
	want := func(texts ...string) {
		t.Helper()
		problems, err := b.MirrorProblems(t.Context())
		must.Succeed(t, err)
		if len(problems) != len(texts) {
			t.Fatalf("problems %q, want %q", problems, texts)
		}
		for i, text := range texts {
			if !strings.Contains(problems[i], text) {
				t.Errorf("problem %q, want %q", problems[i], text)
			}
		}
	}
	want()
	must.Succeed(t, b.EnsureMirror(t.Context(), false))
	want("33 mirrors, and Open vSwitch uses only 32")
	must.Succeed(t, b.commit(t.Context(), nil, func(ctx context.Context, prefix string) (c change, err error) {
		err = b.insert(ctx, &c, &vswitch.Interface{
			Name: "ovn-m0123456789", Type: "ip6gre", Options: map[string]string{"remote_ip": "2001:db8::1", "key": "7"}, Error: new("not supported"),
		}, &vswitch.Port{}, prefix)
		return c, err
	}))
	must.Succeed(t, b.commit(t.Context(), nil, func(ctx context.Context, prefix string) (c change, err error) {
		err = b.insert(ctx, &c, &vswitch.Interface{Name: "ovn-master-0", Type: "geneve", Error: new("a tunnel to a node")}, &vswitch.Port{}, prefix)
		return c, err
	}))
	want("33 mirrors", "not copied to 2001:db8::1 with key 7")
	must.Succeed(t, b.RemoveMirror(t.Context()))
	want("ip6gre): not supported. Load the kernel module")
}
