// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1/requesttest"
	"github.com/kiln-net/kiln/internal/testing/seed"
)

// denial returns the message with which podRequests denies a write, or "" if the write succeeds.
func denial(t *testing.T, err error) string {
	t.Helper()
	switch {
	case err == nil:
		return ""
	case !strings.Contains(err.Error(), podRequestsName):
		t.Fatal(err)
	}
	return err.Error()
}

func TestPodRequests(t *testing.T) {
	a := newAdviser(t)
	t.Run("denials", a.deniesWhatCanNeverBeRead)
	t.Run("users", a.deniesNothingToControllers)
	t.Run("changes", a.deniesChangesOnly)
	t.Run("parsers", a.deniesOnlyWhatTheParsersRefuse)
}

func (a adviser) deniesWhatCanNeverBeRead(t *testing.T) {
	cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}}
	cron.Spec.Schedule = "@hourly"
	cron.Spec.JobTemplate.Spec.Template = template(one("ovn.kubernetes.io/default_route", "off"))
	cron.Spec.JobTemplate.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	ofNode := pod(one("ovn.kubernetes.io/ip_address", "10.0.0.300"))
	ofNode.Spec.HostNetwork = true
	for _, tt := range []struct {
		name   string
		object client.Object
		want   []string // parts of the denial; none if the object is created
	}{
		{"nothing of ours", pod(one("example.com/a", "b")), nil},
		{"requests", pod(map[string]string{"ovn.kubernetes.io/ip_address": "10.16.0.9", "ovn.kubernetes.io/ip_pool": ""}), nil},
		{"results of an exported manifest", pod(map[string]string{"ovn.kubernetes.io/allocated": "yes", "ovn.kubernetes.io/cidr": "?", "ovn.kubernetes.io/mtu": "x"}), nil},
		{"a value that is ignored", pod(one("ovn.kubernetes.io/port_security", "yes")), nil},
		{"a pod on the node's network", ofNode, nil},
		{"an annotation of a workload itself", deployment(one("ovn.kubernetes.io/ip_address", "a"), nil), nil},
		{"an address", pod(one("ovn.kubernetes.io/ip_address", "10.0.0.300")),
			[]string{`ovn.kubernetes.io/ip_address: "10.0.0.300" cannot be read: write one address, or one of each family as in 10.16.0.9,fd00::9`}},
		{"two values", pod(map[string]string{"ovn.kubernetes.io/mac_address": "01:00:5e:00:00:01", "ovn.kubernetes.io/vip": "A"}),
			[]string{`mac_address: "01:00:5e:00:00:01" cannot be read: write a unicast MAC`, `vip: "A" cannot be read: write the name of a Vip`}},
		{"a pod template", deployment(nil, one("ovn.kubernetes.io/ip_pool", "10.16.0.2..10.16.0.9")), []string{`"10.16.0.2..10.16.0.9" cannot be read: write names of IPPools`}},
		{"a CronJob", cron, []string{`ovn.kubernetes.io/default_route: "off" cannot be read: write true or false`}},
		{"several lines", pod(one("ovn.kubernetes.io/routes", "a\nb'\"")), []string{`ovn.kubernetes.io/routes: "a\nb'\"" cannot be read: write a JSON list`}},
		{"a long value", pod(one("ovn.kubernetes.io/vip", strings.Repeat("x", 300))), []string{strings.Repeat("x", 100) + `..." cannot be read`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a.said.take()
			got := denial(t, a.Create(t.Context(), tt.object, client.DryRunAll))
			for _, want := range tt.want {
				if !strings.Contains(got, want) {
					t.Errorf("denied with %q, want %q", got, want)
				}
			}
			if warned := a.said.take(); (got == "") != (len(tt.want) == 0) || got != "" && warned != "" {
				t.Errorf("denied with %q, warned %q", got, warned)
			}
		})
	}
}

// Controllers of Kubernetes create the pods of existing workloads, also with values that cannot be read: the pods have an event.
func (a adviser) deniesNothingToControllers(t *testing.T) {
	for _, tt := range []struct {
		user   rest.ImpersonationConfig
		denied bool
	}{
		{rest.ImpersonationConfig{UserName: "jane", Groups: []string{"system:masters"}}, true},
		{rest.ImpersonationConfig{UserName: "system:serviceaccount:web:ci", Groups: []string{"system:serviceaccounts:web", "system:masters"}}, true},
		{rest.ImpersonationConfig{UserName: "system:serviceaccount:kube-system:replicaset-controller", Groups: []string{"system:serviceaccounts:kube-system", "system:masters"}}, false},
		{rest.ImpersonationConfig{UserName: "system:kube-controller-manager", Groups: []string{"system:masters"}}, false},
		{rest.ImpersonationConfig{UserName: "system:node:a", Groups: []string{"system:nodes", "system:masters"}}, false},
	} {
		config := rest.CopyConfig(a.config)
		config.Impersonate = tt.user
		as, err := client.New(config, client.Options{Scheme: a.Scheme()})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range []client.Object{pod(one("ovn.kubernetes.io/vip", "A")), deployment(nil, one("ovn.kubernetes.io/vip", "A"))} {
			if tt.user.Groups[0] == "system:nodes" && o.GetName() == "p" {
				continue // NodeRestriction permits mirror pods only
			}
			if got := denial(t, as.Create(t.Context(), o, client.DryRunAll)); (got != "") != tt.denied {
				t.Errorf("%s creates a %T: %q", tt.user.UserName, o, got)
			}
		}
	}
}

// Objects that have a value from a time without the policy can be changed, completed and deleted. Only another such value is denied.
func (a adviser) deniesChangesOnly(t *testing.T) {
	config := rest.CopyConfig(a.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:kube-controller-manager", Groups: []string{"system:masters"}}
	as, err := client.New(config, client.Options{Scheme: a.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	for wrapped, o := range map[string]client.Object{
		`%s`:                       pod(one("ovn.kubernetes.io/ip_pool", "A")),
		`{"spec":{"template":%s}}`: deployment(nil, one("ovn.kubernetes.io/ip_pool", "A")),
	} {
		if err := as.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		annotations := func(json string) string { return fmt.Sprintf(wrapped, `{"metadata":{"annotations":`+json+`}}`) }
		for _, tt := range []struct {
			name, patch string
			denied      bool
		}{
			{"a finalizer", `{"metadata":{"finalizers":["example.com/f"]}}`, false},
			{"a label", `{"metadata":{"labels":{"a":"b"}}}`, false},
			{"an annotation of others", annotations(`{"example.com/a":"b"}`), false},
			{"the same value", annotations(`{"ovn.kubernetes.io/ip_pool":"A"}`), false},
			{"a correction", annotations(`{"ovn.kubernetes.io/ip_pool":"a"}`), false},
			{"the end of the annotation", annotations(`{"ovn.kubernetes.io/ip_pool":null}`), false},
			{"another request", annotations(`{"ovn.kubernetes.io/ip_address":"10.16.0.9"}`), false},
			{"another such value", annotations(`{"ovn.kubernetes.io/ip_pool":"B"}`), true},
			{"another such request", annotations(`{"ovn.kubernetes.io/ip_address":"10.16.0"}`), true},
		} {
			changed := o.DeepCopyObject().(client.Object)
			err := a.Patch(t.Context(), changed, client.RawPatch(types.MergePatchType, []byte(tt.patch)), client.DryRunAll)
			if got := denial(t, err); (got != "") != tt.denied {
				t.Errorf("%T: %s: %q", o, tt.name, got)
			}
		}
		if err := a.Delete(t.Context(), o); err != nil {
			t.Error(err)
		}
	}
}

// deniesOnlyWhatTheParsersRefuse compares denials with the parsers of kube-ovn-controller: a pod that is denied would get no network. Each
// request that such a parser refuses has a row in podRequestsChecked.
func (a adviser) deniesOnlyWhatTheParsersRefuse(t *testing.T) {
	const edits = 4
	random := seed.Rand(seed.New(t), 1)
	denied := 0
	for name, values := range requesttest.OfPods() {
		key := kubeovnv1.Annotation(name).Key()
		checked := slices.ContainsFunc(podRequestsChecked(), func(r podRequest) bool { return r.annotation.Key() == key })
		refused := slices.ContainsFunc(values.Invalid, func(text string) bool {
			_, err := kubeovnv1.ParsePodRequest(one(key, text))
			return err != nil
		})
		if refused && !checked {
			t.Errorf("podRequestsChecked has no row for %s", name)
		}
		texts := append(slices.Concat(values.Valid, values.Invalid), requesttest.TooMuch(1000)...)
		for _, text := range slices.Clone(texts) {
			for range edits {
				texts = append(texts, edited(random, text))
			}
		}
		for _, text := range texts {
			_, err := kubeovnv1.ParsePodRequest(one(key, text))
			got := denial(t, a.Create(t.Context(), pod(one(key, text)), client.DryRunAll))
			if got != "" && err == nil {
				t.Errorf("%s: %q is valid, but the API server denies it: %s", name, text, got)
			}
			if got != "" {
				denied++
			}
		}
	}
	if denied < 100 {
		t.Errorf("%d denials", denied)
	}
}

// edited returns a text with a character that is inserted, replaced or removed.
func edited(random *rand.Rand, text string) string {
	const alphabet = "0123456789abcdefABF:.,;/-% \t\"[]{}\u0130\u212a\u00a0"
	characters, to := []rune(text), []rune(alphabet)
	at, by := random.IntN(len(characters)), to[random.IntN(len(to))]
	switch random.IntN(3) {
	case 0:
		characters = slices.Insert(characters, at, by)
	case 1:
		characters[at] = by
	default:
		characters = slices.Delete(characters, at, at+1)
	}
	return string(characters)
}
