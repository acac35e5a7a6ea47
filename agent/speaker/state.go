// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/kiln-net/kiln/internal/node/bgpstate"
)

// StatePath is the HTTP path of the state. It answers requests from the node itself only. With the parameter RoutesParameter, the answer contains the
// routes of the sessions.
const (
	StatePath       = "/state"
	RoutesParameter = "routes"
)

// served serves the state and the readiness of a Reconciler, which is set before requests arrive.
type served struct{ reconciler *Reconciler }

// ready reports whether the prefixes of the node are known. Sessions that are not established are no fault of this pod.
func (s *served) ready(*http.Request) error {
	s.reconciler.mu.Lock()
	defer s.reconciler.mu.Unlock()
	if !s.reconciler.loaded {
		return errors.New("the objects of the cluster, or the OVNCluster, are not known yet")
	}
	return nil
}

// ServeHTTP serves the state.
func (s *served) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	state, err := s.reconciler.State(r.Context(), r.URL.Query().Has(RoutesParameter))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(state) // the client closed the connection
}

// State returns the state of the speaker, with the routes of sessions on request.
func (r *Reconciler) State(ctx context.Context, routes bool) (bgpstate.State, error) {
	sessions, err := r.Server.State(ctx)
	if err != nil {
		return bgpstate.State{}, err
	}
	state := bgpstate.State{Node: r.Node}
	r.fill(&state)
	for _, p := range sessions.Peers {
		peer := p.Peer
		if routes && p.Established {
			if peer.AnnouncedRoutes, err = r.Server.Routes(p.Address, false, bgpstate.MaxRoutes); err != nil {
				return bgpstate.State{}, err
			}
			if peer.ReceivedRoutes, err = r.Server.Routes(p.Address, true, bgpstate.MaxRoutes); err != nil {
				return bgpstate.State{}, err
			}
		}
		state.Peers = append(state.Peers, peer)
	}
	return state, nil
}
