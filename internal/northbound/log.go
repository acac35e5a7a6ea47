// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"errors"

	"github.com/kiln-net/kiln/internal/northbound/desired"
)

// logCommitted logs, at verbosity 1, how many rows a transaction has changed for each owner, and how many values of sets, such as members of
// port groups.
func (e *Engine) logCommitted(requests []*request, plans []*plan) {
	log := e.log.V(1)
	if !log.Enabled() {
		return
	}
	for i, p := range plans {
		log.Info("committed rows", "owner", requests[i].owner.String(),
			"inserted", len(p.inserts), "updated", len(p.updates), "deleted", len(p.deletes)+p.detached,
			"valuesAdded", len(p.adds), "valuesRemoved", len(p.removes), "owners", len(plans))
	}
}

// logWaiting logs, at verbosity 1, that the rows of an owner wait for another row. No transaction was sent for them.
func (e *Engine) logWaiting(o desired.Owner, err error) {
	if !errors.Is(err, ErrWaiting) {
		return
	}
	if log := e.log.V(1); log.Enabled() {
		log.Info("rows wait", "owner", o.String(), "reason", err.Error())
	}
}
