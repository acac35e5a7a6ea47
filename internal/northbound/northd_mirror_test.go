// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

func mirrorOf(spec kubeovnv1.TrafficMirrorSpec, pods ...string) []desired.Row {
	in := translate.TrafficMirrorInputs{Name: "m", Spec: spec}
	for _, name := range pods {
		in.Ports = append(in.Ports, kubeovnv1.NewPort("ns", name, kubeovnv1.ProviderOVN))
	}
	return translate.TrafficMirror(in)
}

// mirrors describes the mirrors of a chassis and their tunnels, with the names of the ports from which and to which packets are copied.
func mirrors(c *nbtest.Chassis) string {
	ports, interfaces := c.Rows("Port"), c.Rows("Interface")
	names := func(uuids []string) string {
		var out []string
		for _, uuid := range uuids {
			out = append(out, fmt.Sprint(ports[uuid]["name"]))
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	var out []string
	for _, m := range c.Rows("Mirror") {
		if m["name"] == "m0" {
			continue
		}
		line := "from [" + names(m.Strings("select_src_port")) + "] to [" + names(m.Strings("select_dst_port")) + "]"
		for _, output := range m.Strings("output_port") {
			for _, iface := range ports[output].Strings("interfaces") {
				line += fmt.Sprintf(" by %v %v", interfaces[iface]["type"], interfaces[iface]["options"])
			}
		}
		out = append(out, line)
	}
	return strings.Join(slices.Sorted(slices.Values(out)), "; ")
}

// TestMirrorsReachOpenvSwitch checks what a real ovn-northd and ovn-controller make of a TrafficMirror, while ports and mirrors change.
func TestMirrorsReachOpenvSwitch(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	versions := map[string]string{}
	for i, name := range []string{"a", "b", "c"} {
		e.apply(pod(name), podOf(translate.PodInputs{Name: name, Node: "n1", Subnet: "s1"}, i))
		versions[name+".ns"] = name
	}
	chassis := northd.Chassis("n1", versions)
	chassis.VSCtl("--", "--id=@m", "create", "Mirror", "name=m0", "--", "add", "Bridge", "br-int", "mirrors", "@m") // as the agent does
	want := func(what string, lines ...string) {
		t.Helper()
		chassis.Sync()
		eventually.Wait{For: what + ": " + strings.Join(lines, "; ")}.Holds(t, func() bool {
			got := mirrors(chassis)
			if len(lines) == 0 {
				return got == ""
			}
			for _, line := range lines {
				if !strings.Contains(got, line) {
					return false
				}
			}
			return strings.Count(got, "from [") == len(lines)
		})
	}
	owner := translate.TrafficMirrorOwner("m")
	spec := kubeovnv1.TrafficMirrorSpec{Type: kubeovnv1.TrafficMirrorGRE, Sink: "127.0.0.9", Key: 7, Direction: kubeovnv1.TrafficMirrorBoth}
	e.apply(owner, mirrorOf(spec, "a", "b"))
	// No option sets the source of copies: the node's route to the sink selects it.
	want("both directions", "from [a.ns b.ns] to [a.ns b.ns] by gre map[key:7 remote_ip:127.0.0.9]")
	e.apply(owner, mirrorOf(spec, "a"))
	want("fewer ports", "from [a.ns] to [a.ns] by gre")
	spec.Direction = kubeovnv1.TrafficMirrorFrom
	e.apply(owner, mirrorOf(spec, "a", "c"))
	want("from pods", "from [a.ns c.ns] to [] by gre")
	spec.Type, spec.Sink, spec.Direction, spec.Key = kubeovnv1.TrafficMirrorERSPAN, "::1", kubeovnv1.TrafficMirrorTo, 1023
	e.apply(owner, mirrorOf(spec, "a", "c"))
	want("another type, sink and direction", "from [] to [a.ns c.ns] by ip6erspan map[erspan_idx:1023 erspan_ver:1 key:1023 remote_ip:::1]")

	t.Run("a port and its device are deleted", func(*testing.T) {
		chassis.VSCtl("del-port", "br-int", "c.ns")
		e.apply(owner, mirrorOf(spec, "a"))
		e.apply(pod("c"), nil)
		want("a deleted port", "from [] to [a.ns] by ip6erspan")
		e.apply(owner, mirrorOf(spec, "a", "b"))
		e.apply(pod("b"), nil) // before its mirror knows it
		e.expectCall(owner)
		if err := e.try(owner, mirrorOf(spec, "a", "b")); !errors.Is(err, northbound.ErrWaiting) {
			t.Errorf("with a port that does not exist: %v", err)
		}
		want("a deleted port of the mirror", "from [] to [a.ns] by ip6erspan")
		e.apply(pod("b"), podOf(translate.PodInputs{Name: "b", Node: "n1", Subnet: "s1"}, 1))
		e.expectCall(owner)
		e.apply(owner, mirrorOf(spec, "a", "b"))
		want("a port that is back", "from [] to [a.ns b.ns] by ip6erspan")
	})
	e.apply(owner, nil)
	want("no mirror")
	if len(chassis.Rows("Mirror")) != 1 {
		t.Error("ovn-controller deleted the mirror of the agent")
	}
}

// TestMirrorsOfOthersStay attaches a mirror of an administrator (ovn-nbctl lsp-attach-mirror) to the port of a pod.
func TestMirrorsOfOthersStay(t *testing.T) {
	server := nbtest.Start(t)
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	e.apply(pod("a"), podOf(translate.PodInputs{Name: "a", Node: "n1", Subnet: "s1"}, 0))
	port := translate.PodPortRef(kubeovnv1.NewPort("ns", "a", kubeovnv1.ProviderOVN)).UUID()
	server.Transact(
		nbtest.Op{"op": "insert", "table": "Mirror", "uuid-name": "theirs", "row": map[string]any{
			"name": "theirs", "type": "gre", "sink": "192.0.2.1", "index": 1, "filter": "from-lport"}},
		nbtest.Op{"op": "mutate", "table": "Logical_Switch_Port", "where": []any{[]any{"_uuid", "==", []any{"uuid", port}}},
			"mutations": []any{[]any{"mirror_rules", "insert", []any{"named-uuid", "theirs"}}}},
	)
	attached := func() string {
		var names []string
		for _, uuid := range server.Rows("Logical_Switch_Port")[port].Strings("mirror_rules") {
			names = append(names, fmt.Sprint(server.Rows("Mirror")[uuid]["name"]))
		}
		slices.Sort(names)
		return strings.Join(names, " ")
	}
	want := func(what, names string) {
		t.Helper()
		if got := attached(); got != names {
			t.Errorf("%s: the port has the mirrors %q, want %q", what, got, names)
		}
	}
	owner := translate.TrafficMirrorOwner("m")
	spec := kubeovnv1.TrafficMirrorSpec{Sink: "192.0.2.2", Key: 2}
	rows := mirrorOf(spec, "a")
	e.apply(owner, rows)
	ours := slices.Sorted(maps.Keys(map[string]bool{"theirs": true, mirrorNameOf(rows): true}))
	want("both", strings.Join(ours, " "))
	e.apply(pod("a"), podOf(translate.PodInputs{Name: "a", Node: "n2", Subnet: "s1", PortSecurity: true}, 0))
	want("an update of the pod", strings.Join(ours, " "))
	e.stop()
	e = lead(t, server.Endpoint())
	e.apply(owner, mirrorOf(spec))
	want("without ours, after a restart", "theirs")
	if got := len(server.Rows("Mirror")); got != 1 {
		t.Errorf("%d mirrors, want the administrator's", got)
	}
}

func mirrorNameOf(rows []desired.Row) string {
	return fmt.Sprint(rows[0].Model.(interface{ GetName() string }).GetName())
}
