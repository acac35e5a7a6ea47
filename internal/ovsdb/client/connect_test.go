// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/json"
	"testing"
)

// After an update that cannot be read, the next connection reads the whole database: it must not send the update a second time.
func TestAnUpdateWithAWrongTransactionIsNotAppliedTwice(t *testing.T) {
	const first, second = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
	for name, c := range map[string]struct {
		txn, updates string
		fails        bool
		want         string
	}{
		"readable":            {txn: `"` + second + `"`, updates: `{}`, want: second},
		"a wrong transaction": {txn: `7`, updates: `{}`, fails: true, want: noTxn},
		"no transaction":      {txn: `null`, updates: `{}`, want: noTxn},
		"wrong updates":       {txn: `"` + second + `"`, updates: `7`, fails: true, want: noTxn},
	} {
		m := monitors{session: &Session{replica: newReplica(northboundModel(t))}, lastTxn: first}
		err := m.notify("update3", []json.RawMessage{[]byte(`"id"`), []byte(c.txn), []byte(c.updates)})
		if (err != nil) != c.fails || m.lastTxn != c.want {
			t.Errorf("%s: the last transaction is %s and the error %v, want %s", name, m.lastTxn, err, c.want)
		}
	}
}

// The observer sees the rows that the replica has, even if the update fails at another row.
func TestAnUpdateThatFailsReportsItsChanges(t *testing.T) {
	for range 20 { // the order of the rows is random
		observed := map[string]bool{}
		s := &Session{replica: newReplica(northboundModel(t)), observer: func(_ *Replica, u Update) {
			for _, change := range u.Rows {
				observed[change.UUID] = true
			}
		}}
		const good, bad = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
		err := s.update(tableUpdates{"Address_Set": {
			good: {insert: []byte(`{"name":"a"}`)},
			bad:  {modify: []byte(`{"name":"b"}`)}, // the replica does not have it
		}})
		if err == nil {
			t.Fatal("the update did not fail")
		}
		if there := s.replica.Row("Address_Set", good) != nil; there != observed[good] {
			t.Fatalf("the replica has the row: %t, the observer has seen it: %t", there, observed[good])
		}
	}
}
