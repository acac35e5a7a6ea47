// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/podset"
	"github.com/kiln-net/kiln/internal/testing/golden"
)

// goldenACL is an ACL in a golden file. In its match, names of sets are replaced by their selectors.
type goldenACL struct {
	Key       string            `json:"key"`
	Direction string            `json:"direction"`
	Tier      int               `json:"tier"`
	Priority  int               `json:"priority"`
	Action    string            `json:"action"`
	Match     string            `json:"match"`
	Name      string            `json:"name"`
	Options   map[string]string `json:"options,omitempty"`
	Log       string            `json:"log,omitempty"`
}

type goldenPolicy struct {
	Sets     []string    `json:"sets"`
	Problems []string    `json:"problems,omitempty"`
	ACLs     []goldenACL `json:"acls"`
	LogRate  int         `json:"logRate,omitempty"`
}

// fixedNumbers returns the port numbers in a cluster where pods have TCP port http as 8080 or 9090, UDP port dns as 53, and no other named
// ports.
func fixedNumbers(s podset.Selector) []int32 {
	switch s.Protocol + "/" + s.Port {
	case "TCP/http":
		return []int32{8080, 9090}
	case "UDP/dns":
		return []int32{53}
	}
	return nil
}

func TestNetworkPolicies(t *testing.T) {
	policies(t, "testdata/networkpolicy-*.in.yaml", func(np *networkingv1.NetworkPolicy) compiled { return networkPolicy(np, fixedNumbers) })
}

// A rule for a named port that no pod has yet does nothing. The first pod with the port gives it a number, and in that pass the sets of its
// peers must have their pods already: the rule would drop allowed packets until they do.
func TestPeersOfANamedPortWithoutPodsAreInUse(t *testing.T) {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "np"}}
	np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
		From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}}},
		Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromString("nobody-has-it"))}},
	}}
	peers := podset.Selector{Role: podset.Peers, Namespace: "shop", Pods: "app=client"}
	if c := networkPolicy(np, fixedNumbers); !slices.Contains(c.uses, peers) {
		t.Errorf("the policy uses %v, want also %v", c.uses, peers)
	}
}

// TestPoliciesWaitForTheirPortGroup: a policy is not ready before its port group exists.
func TestPoliciesWaitForTheirPortGroup(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		waits bool
		want  string
	}{
		"committed":          {nil, false, "True Applied"},
		"for pods":           {nil, true, "False Waiting"},
		"for the port group": {fmt.Errorf("apply: %w", northbound.ErrWaiting), false, "False Waiting"},
		"failed":             {errors.New("no database"), false, "False Failed"},
	} {
		for _, condition := range conditionsOf(compiled{}, c.err, c.waits) {
			if got := fmt.Sprint(condition.Status, " ", condition.Reason); condition.Type == kubeovnv1.ConditionReady && got != c.want {
				t.Errorf("%s: %s", name, got)
			}
		}
	}
}

// fixedNodes returns the addresses of a cluster with one node.
func fixedNodes(*metav1.LabelSelector) ([]netip.Prefix, error) {
	return []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8::1/128")}, nil
}

// policies compiles each input and compares the rules with the .out.yaml file next to it.
func policies[T any](t *testing.T, pattern string, compile func(*T) compiled) {
	t.Helper()
	golden.Each(t, pattern, func(t *testing.T, in T, out string) { golden.YAML(t, out+".yaml", goldenOf(t, compile(&in))) })
}

func goldenOf(t *testing.T, c compiled) goldenPolicy {
	t.Helper()
	out := goldenPolicy{Problems: c.problems}
	var words []string
	for _, s := range c.uses {
		out.Sets = append(out.Sets, s.String())
		words = append(words, wordsOf(s)...)
	}
	keys := map[string]bool{}
	for _, row := range c.rows() {
		if keys[row.Key] {
			t.Errorf("key %s appears twice", row.Key)
		}
		keys[row.Key] = true
		switch m := row.Model.(type) {
		case *nb.ACL:
			acl := goldenACL{
				Key: row.Key, Direction: m.Direction, Tier: m.Tier, Priority: m.Priority, Action: m.Action, Name: *m.Name, Options: m.Options,
				Match: strings.NewReplacer(words...).Replace(m.Match),
			}
			if m.Log {
				acl.Log, out.LogRate = *m.Severity, c.logRate
			}
			out.ACLs = append(out.ACLs, acl)
		}
	}
	return out
}

// wordsOf returns pairs of a name of a set in matches and its readable form, for strings.NewReplacer.
func wordsOf(s podset.Selector) []string {
	in := translate.PodSetInputs{Name: s.Name(), Subjects: s.Role == podset.Subjects, Numbers: []int32{0}}
	if s.Port != "" {
		in.Numbers = fixedNumbers(s)
	}
	var words []string
	for _, row := range translate.PodSet(in) {
		switch m := row.Model.(type) {
		case *nb.PortGroup:
			words = append(words, "@"+m.Name, fmt.Sprintf("@<%s>", s))
		case *nb.AddressSet:
			words = append(words, "$"+m.Name, fmt.Sprintf("$<%s: %s>", s, row.Key))
		}
	}
	return words
}
