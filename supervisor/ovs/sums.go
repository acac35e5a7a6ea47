// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import "github.com/kiln-net/kiln/supervisor/jsonrpc"

// sums adds up the statistics of groups of interfaces. A sum never decreases, although interfaces disappear: it would look like a restart of
// the counter.
type sums struct {
	last  map[jsonrpc.UUID]map[string]float64
	total map[string]map[string]float64
}

// add adds what each interface counted since the previous call, and returns the totals by group. A call has all interfaces, each with the
// name of its group.
func (s *sums) add(rows []interfaceRow, group func(interfaceRow) string) map[string]map[string]float64 {
	if s.total == nil {
		s.total = map[string]map[string]float64{podsSum: {}, tunnelsSum: {}}
	}
	now := make(map[jsonrpc.UUID]map[string]float64, len(rows))
	for _, r := range rows {
		name := group(r)
		if name == "" {
			continue
		}
		for key, value := range r.Statistics {
			if before := s.last[r.UUID][key]; before <= value {
				value -= before
			}
			s.total[name][key] += value
		}
		now[r.UUID] = r.Statistics
	}
	s.last = now
	return s.total
}
