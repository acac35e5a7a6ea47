// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"maps"
	"slices"
	"testing"

	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// The chains that the kernel refuses to delete do not keep the others, and cause few attempts.
func TestAChainThatIsNotDeletedDoesNotKeepOthers(t *testing.T) {
	nft := &refusing{Interface: knftables.NewFake(knftables.InetFamily, Table), chain: "pick-5"}
	w := newWriter(nft)
	must.Succeed(t, w.rewrite(t.Context(), nil, nil, nil))
	scale := func(from, to int) []chain {
		t.Helper()
		for n := from; n < to; n++ {
			must.Succeed(t, w.update(t.Context(), wanting(w, large(n, false, nil)), nil))
		}
		chains, err := w.chains(t.Context())
		must.Succeed(t, err)
		return chains
	}
	chains := scale(1, 100)
	if len(chains) > spareChains+3 || !slices.Contains(chains, chain{kindPick, 5}) {
		t.Errorf("%d chains are left: %v", len(chains), chains)
	}
	if nft.runs > 200 {
		t.Errorf("100 updates caused %d transactions", nft.runs)
	}
	nft.chain = ""
	if chains = scale(100, 200); slices.Contains(chains, chain{kindPick, 5}) {
		t.Errorf("the chain was not tried again: %v", chains)
	}
}

// The effort is bounded while the kernel refuses all deletions, and chains that are in use again no longer count as refused.
func TestRefusedDeletionsAreBounded(t *testing.T) {
	nft := &refusing{Interface: knftables.NewFake(knftables.InetFamily, Table), chains: true}
	w := newWriter(nft)
	must.Succeed(t, w.rewrite(t.Context(), nil, nil, nil))
	const n = 10 * maxRefusals
	tx := nft.NewTransaction()
	for i := range n {
		w.addChain(tx, chain{kindPick, i + 1})
		w.unused[chain{kindPick, i + 1}] = true
	}
	must.Succeed(t, nft.Run(t.Context(), tx))
	nft.runs = 0
	w.tidy(t.Context())
	if nft.runs > 4*maxRefusals || len(w.unused) != n {
		t.Errorf("%d refused deletions caused %d transactions", n-len(w.unused), nft.runs)
	}

	nft.chains = false
	used := maps.Clone(w.unused)
	w.unused = map[chain]bool{}
	w.tidy(t.Context())
	w.unused = used
	w.tidy(t.Context())
	if len(w.unused) > 0 {
		t.Errorf("%d chains are left", len(w.unused))
	}
}
