// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

func translated(address, internal string) translate.Translation {
	return translate.Translation{Vpc: "blue", Address: netip.MustParseAddr(address), Internal: netip.MustParsePrefix(internal)}
}

// A pass that cannot commit its rows runs again, and withdraws the same translation again.
func TestARepeatedWithdrawalHasOneRecord(t *testing.T) {
	of := func(rule, internal string, nodes ...string) kubeovnv1.OvnEipRelease {
		return releaseOf(rule, translated("192.0.2.9", internal), nodes)
	}
	releasing := map[string]kubeovnv1.OvnEipRelease{}
	apply := func(released ...kubeovnv1.OvnEipRelease) {
		for id, release := range recorded(releasing, released) {
			if delete(releasing, id); release != nil {
				releasing[id] = *release
			}
		}
	}
	id := func(internal string) string {
		for id, release := range releasing {
			if release.Internal == internal {
				return id
			}
		}
		return ""
	}
	apply(of("OvnFip other", "10.0.0.6/32", "n1"), of("OvnFip web", "10.0.0.5/32", "n2", "n1"))
	first, view := id("10.0.0.5/32"), viewReleasing(&kubeovnv1.OvnEip{Status: kubeovnv1.OvnEipStatus{Releasing: releasing}})
	apply(of("OvnFip web", "10.0.0.5/32", "n1"))
	second := id("10.0.0.5/32")
	if len(releasing) != 2 || first == second || hashIn(first) != hashIn(second) {
		t.Errorf("the records are %v", releasing)
	}
	if got := viewReleasing(&kubeovnv1.OvnEip{Status: kubeovnv1.OvnEipStatus{Releasing: releasing}}); got != view {
		t.Errorf("a pass that is repeated enqueues the rule: %s, then %s", view, got)
	}
	if nodes := releasing[second].Nodes; !slices.Equal(nodes, []string{"n1", "n2"}) {
		t.Errorf("the nodes of the earlier withdrawal are not among %v", nodes)
	}
	if got := former(releasing[second]); got != translated("192.0.2.9", "10.0.0.5/32") {
		t.Errorf("the record is of %v", got)
	}
	again := resumed(releasing, []translate.Translation{translated("192.0.2.9", "10.0.0.5/32"), translated("192.0.2.9", "10.0.0.7/32")})
	if _, has := again[second]; len(again) != 1 || !has {
		t.Errorf("translations that are applied again have the records %v", again)
	}
}

// A node that does not exist, or has not confirmed for five days, holds no address, and gets the request when it returns.
func TestAbsentNodesHoldNoAddress(t *testing.T) {
	release := releaseOf("OvnFip other", translated("192.0.2.9", "10.0.0.5/32"), nil)
	release.Absent = []string{"n1"}
	releasing := map[string]kubeovnv1.OvnEipRelease{}
	for id := range recorded(nil, []kubeovnv1.OvnEipRelease{release}) {
		releasing[id] = release
	}
	web := &lookup.NATRule{Object: &kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, Kind: translate.KindOvnFip}
	if text := pending(releasing, web, false, []translate.Translation{translated("192.0.2.9", "10.0.0.6/32")}); text != "" {
		t.Errorf("the rule waits for %s", text)
	}
	for id, again := range recorded(releasing, []kubeovnv1.OvnEipRelease{releaseOf("OvnFip other", translated("192.0.2.9", "10.0.0.5/32"), []string{"n2"})}) {
		if _, replaced := releasing[id]; !replaced && (!slices.Equal(again.Nodes, []string{"n2"}) || !slices.Equal(again.Absent, []string{"n1"})) {
			t.Errorf("after another withdrawal the record is %+v", again)
		}
	}
	if known := knownNodes(nil, releasing); !slices.Equal(known, []string{"n1"}) {
		t.Errorf("the nodes of a translation that is applied again are %v", known)
	}
}

// A node without a Node has connections of a translation that is applied again, and may return after the next withdrawal.
func TestATranslationThatIsAppliedAgainKeepsItsAbsentNodes(t *testing.T) {
	for name, c := range map[string]struct{ nodes, absent, want []string }{
		"all nodes exist":         {nodes: []string{"n1", "n2"}},
		"a node does not exist":   {nodes: []string{"n1", "n3"}, want: []string{"n3"}},
		"a node is absent":        {nodes: []string{"n1"}, absent: []string{"n3"}, want: []string{"n3"}},
		"an absent node exists":   {absent: []string{"n2"}},
		"one of two exists":       {absent: []string{"n2", "n3"}, want: []string{"n3"}},
		"only nodes that are not": {absent: []string{"n3", "n4"}, want: []string{"n3", "n4"}},
	} {
		release := releaseOf("OvnFip web", translated("192.0.2.9", "10.0.0.5/32"), c.nodes)
		release.Absent = c.absent
		releasing := map[string]kubeovnv1.OvnEipRelease{"hash-1": release}
		changes := takenOver(releasing, []string{"n1", "n2"})
		if unchanged := slices.Equal(c.absent, c.want) && c.nodes == nil; unchanged != (len(changes) == 0) {
			t.Errorf("%s: the changes are %v", name, changes)
		}
		for id, changed := range changes {
			if delete(releasing, id); changed != nil {
				releasing[id] = *changed
			}
		}
		var absent []string
		for id, left := range releasing {
			if absent = left.Absent; hashIn(id) != "hash" || len(left.Nodes) > 0 || !left.Since.Equal(&release.Since) {
				t.Errorf("%s: record %s is %+v", name, id, left)
			}
		}
		if !slices.Equal(absent, c.want) || len(releasing) > 1 {
			t.Errorf("%s: the records are %v, want absent %v", name, releasing, c.want)
		}
	}
}

// The connections to the former pod must end, also if the port leads to the next one of the same rule.
func TestARecordOfAPortIsOfItsPod(t *testing.T) {
	port := func(internal string) translate.Translation {
		t := translated("192.0.2.9", internal)
		t.Protocol, t.Port = "tcp", 80
		return t
	}
	releasing := map[string]kubeovnv1.OvnEipRelease{}
	for id, release := range recorded(nil, []kubeovnv1.OvnEipRelease{releaseOf("OvnDnatRule web", port("10.0.0.5/32"), []string{"n1"})}) {
		releasing[id] = *release
	}
	if again := resumed(releasing, []translate.Translation{port("10.0.0.6/32")}); len(again) != 0 {
		t.Errorf("a port of another pod takes over %v", again)
	}
	if again := resumed(releasing, []translate.Translation{port("10.0.0.5/32")}); len(again) != 1 {
		t.Errorf("a port of the same pod takes over %v", again)
	}
}

func TestPodsOfOneEgressAddressDoNotWaitForOneAnother(t *testing.T) {
	source := func(internal string) translate.Translation {
		t := translated("192.0.2.9", internal)
		t.Source = true
		return t
	}
	release := releaseOf("OvnSnatRule old.shop", source("10.0.0.5/32"), []string{"n1"})
	release.EgressAddress = "out"
	releasing := map[string]kubeovnv1.OvnEipRelease{"a": release}
	for egress, waits := range map[string]bool{"out": false, "other": true, "": true} {
		rule := &lookup.NATRule{Kind: translate.KindOvnSnatRule, Object: &kubeovnv1.OvnSnatRule{ObjectMeta: metav1.ObjectMeta{
			Name: "new.shop", Annotations: map[string]string{kubeovnv1.EgressOfRule: egress},
		}}}
		if text := pending(releasing, rule, false, []translate.Translation{source("10.0.0.6/32")}); (text != "") != waits {
			t.Errorf("a rule of EgressAddress %q waits for %q", egress, text)
		}
	}
	release.EgressAddress = ""
	rule := &lookup.NATRule{Kind: translate.KindOvnSnatRule, Object: &kubeovnv1.OvnSnatRule{ObjectMeta: metav1.ObjectMeta{Name: "new.shop"}}}
	if text := pending(map[string]kubeovnv1.OvnEipRelease{"a": release}, rule, false, []translate.Translation{source("10.0.0.6/32")}); text == "" {
		t.Error("rules without an EgressAddress do not wait for one another")
	}
}

func TestManyFormerTranslationsStopFurtherOnes(t *testing.T) {
	web := &lookup.NATRule{Object: &kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, Kind: translate.KindOvnFip}
	added := []translate.Translation{translated("192.0.2.8", "10.0.0.5/32")}
	releasing := map[string]kubeovnv1.OvnEipRelease{}
	add := func(rule string, number int) {
		for range number {
			releasing[fmt.Sprint(len(releasing))] = releaseOf(rule, translated("192.0.2.9", "10.0.0.6/32"), []string{"n1"})
		}
	}
	expect := func(follows bool, want string) {
		t.Helper()
		if text := pending(releasing, web, follows, added); (text == "") != (want == "") || !strings.Contains(text, want) {
			t.Errorf("with %d former translations the rule waits for %q, want %q", len(releasing), text, want)
		}
	}
	add("OvnFip other", maxReleasing-maxOfRule)
	add("OvnFip web", maxOfRule-1)
	expect(false, "")
	add("OvnFip other", 1)
	expect(false, "nodes n1 to end the connections of some of the 256 former translations of the OvnEip: until the agents of these nodes report it")
	expect(true, "") // it follows its pod
	add("OvnFip web", 1)
	for _, follows := range []bool{false, true} {
		expect(follows, "nodes n1 to end the connections of some of the 64 former translations of the rule")
	}
}

func TestFormerTranslationsThatContradict(t *testing.T) {
	floating := kubeovnv1.OvnEipRelease{VPC: "blue", Address: "192.0.2.9", Internal: "10.0.0.5/32"}
	source := kubeovnv1.OvnEipRelease{VPC: "blue", Address: "192.0.2.9", Internal: "10.0.0.0/24", Source: true}
	port := kubeovnv1.OvnEipRelease{VPC: "blue", Address: "192.0.2.9", Internal: "10.0.0.5/32", Protocol: "tcp", Port: 80}
	at := translated
	sources := func(t translate.Translation) translate.Translation { t.Source = true; return t }
	ports := func(t translate.Translation, protocol string, port uint16) translate.Translation {
		t.Protocol, t.Port = protocol, port
		return t
	}
	inRed := func(t translate.Translation) translate.Translation { t.Vpc = "red"; return t }
	for _, c := range []struct {
		name   string
		former kubeovnv1.OvnEipRelease
		new    translate.Translation
		want   bool
	}{
		{"another address", floating, at("192.0.2.10", "10.0.0.6/32"), false},
		{"another family", floating, at("2001:db8::9", "fd00::6/128"), false},
		{"the same pod", floating, at("192.0.2.9", "10.0.0.5/32"), false},
		{"the same internal address of another VPC", floating, inRed(at("192.0.2.9", "10.0.0.5/32")), true},
		{"the same sources of another VPC", source, inRed(sources(at("192.0.2.9", "10.0.0.0/24"))), true},
		{"the same port of another VPC", port, inRed(ports(at("192.0.2.9", "10.0.0.5/32"), "tcp", 80)), true},
		{"another pod", floating, at("192.0.2.9", "10.0.0.6/32"), true},
		{"a port of a floating address", floating, ports(at("192.0.2.9", "10.0.0.6/32"), "tcp", 80), true},
		{"sources of a floating address", floating, sources(at("192.0.2.9", "10.0.0.0/24")), true},
		{"a floating address of sources", source, at("192.0.2.9", "10.0.0.6/32"), true},
		{"other sources", source, sources(at("192.0.2.9", "10.0.1.0/24")), true},
		{"the same sources", source, sources(at("192.0.2.9", "10.0.0.0/24")), false},
		{"a port beside sources", source, ports(at("192.0.2.9", "10.0.0.6/32"), "tcp", 80), false},
		{"sources beside a port", port, sources(at("192.0.2.9", "10.0.0.0/24")), false},
		{"the same port of another pod", port, ports(at("192.0.2.9", "10.0.0.6/32"), "tcp", 80), true},
		{"another port", port, ports(at("192.0.2.9", "10.0.0.6/32"), "tcp", 81), false},
		{"another protocol", port, ports(at("192.0.2.9", "10.0.0.6/32"), "udp", 80), false},
		{"a floating address of a port", port, at("192.0.2.9", "10.0.0.6/32"), true},
		{"an address that cannot be read", kubeovnv1.OvnEipRelease{Address: "x", Internal: "y"}, at("192.0.2.9", "10.0.0.6/32"), false},
	} {
		if got := contradicts(former(c.former), c.new); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}

func TestTranslationsOfTwoRulesThatExcludeEachOther(t *testing.T) {
	floating := translated("192.0.2.9", "10.0.0.5/32")
	source := func(internal string) translate.Translation {
		t := translated("192.0.2.9", internal)
		t.Source = true
		return t
	}
	port := func(number uint16) translate.Translation {
		t := translated("192.0.2.9", "10.0.0.5/32")
		t.Protocol, t.Port = "tcp", number
		return t
	}
	red := port(81)
	red.Vpc = "red"
	for _, c := range []struct {
		name string
		a, b translate.Translation
		want bool
	}{
		{"two addresses", floating, translated("192.0.2.10", "10.0.0.5/32"), false},
		{"a floating address twice", floating, floating, true},
		{"a floating address and a port", floating, port(80), true},
		{"a floating address and sources", floating, source("10.0.0.0/24"), true},
		{"a port twice", port(80), port(80), true},
		{"two ports", port(80), port(81), false},
		{"two ports in two VPCs", port(80), red, true},
		{"sources twice", source("10.0.0.0/24"), source("10.0.0.0/24"), true},
		{"two sources", source("10.0.0.0/24"), source("10.0.1.0/24"), false},
		{"sources and a port", source("10.0.0.0/24"), port(80), false},
	} {
		if got := excludes(c.a, c.b); got != c.want || excludes(c.b, c.a) != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}
