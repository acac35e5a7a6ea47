// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

func TestOneWorkerAddsATranslationAtATime(t *testing.T) {
	port := func(number uint16) []translate.Translation {
		return []translate.Translation{{Vpc: "blue", Address: netip.MustParseAddr("192.0.2.9"), Protocol: "tcp", Port: number, Internal: netip.MustParsePrefix("10.50.0.5/32")}}
	}
	var a additions
	begin := func(name string, added []translate.Translation, applied, want string) func() {
		t.Helper()
		got, end := a.begin(translate.OvnNATOwner("OvnDnatRule", name), added, func() string { return applied })
		if got != want {
			t.Errorf("the occupant for %s is %q, want %q", name, got, want)
		}
		return end
	}
	begin("a", port(80), "", "")()
	first := begin("a", port(80), "", "")
	begin("b", port(80), "", "OvnDnatRule a")()
	begin("b", port(80), "", "OvnDnatRule a") // the refused call has ended no other one
	begin("c", port(81), "", "")()
	begin("c", port(81), "OvnFip f", "OvnFip f")
	begin("d", port(81), "", "")()
	first()
	begin("b", port(80), "", "")()
}

func TestRecordsOfRulesShareAnUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("refused")
		var r records
		proceed := make(chan struct{})
		var writes [][]string
		add := func(ctx context.Context, rule string, want error) {
			result := r.add(ctx, "web", []kubeovnv1.OvnEipRelease{{Rule: rule}}, func(all []kubeovnv1.OvnEipRelease) error {
				var rules []string
				for _, release := range all {
					rules = append(rules, release.Rule)
				}
				slices.Sort(rules)
				if writes = append(writes, rules); len(writes) > 1 {
					return refused
				}
				<-proceed
				return nil
			})
			if !errors.Is(result, want) {
				t.Errorf("the result of %s is %v, want %v", rule, result, want)
			}
		}
		go add(t.Context(), "a", nil)
		synctest.Wait()
		ended, cancel := context.WithCancel(t.Context())
		for _, rule := range []string{"b", "c", "d"} {
			go add(t.Context(), rule, refused)
		}
		go add(ended, "e", context.Canceled)
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(proceed)
		synctest.Wait()
		if want := [][]string{{"a"}, {"b", "c", "d", "e"}}; !slices.EqualFunc(writes, want, slices.Equal) {
			t.Errorf("the updates are %q, want %q", writes, want)
		}
	})
}
