// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package batch finds the request that makes a shared transaction fail. The northbound engine and the node's Open vSwitch client use
// it.
package batch

// maxLost is how many times in a row the same requests may get no answer before they are split.
const maxLost = 2

// Outcome is the result of an attempt.
type Outcome int

const (
	// Answered means that each attempted request has its answer.
	Answered Outcome = iota
	// NotSent means that nothing was sent. The same requests are attempted again.
	NotSent
	// Refused means that the server refused all of them, because of one or several.
	Refused
	// Lost means that the server ended the connection, or gave no answer in time, and that nothing of the attempt can still be
	// committed later.
	Lost
)

// Attempt is one transaction.
type Attempt[T any] struct {
	Outcome Outcome
	// Err is the reason for Refused and Lost.
	Err error
	// Tried are the requests that shared the transaction and have no answer. They are given for each Outcome but Answered.
	Tried []T
	// Left are the requests that did not fit. They are attempted separately.
	Left []T
}

// Isolate calls try until each request has an answer. It halves a piece that was refused, or that had no answer twice in a row. It calls
// fail for a single request that is refused or gets no answer. One bad request of n costs the others about 2·log2(n) attempts.
func Isolate[T any](requests []T, try func([]T) Attempt[T], fail func(T, error)) {
	type piece struct {
		requests []T
		lost     int // times that these requests had no answer
	}
	work := []piece{{requests: requests}}
	for len(work) > 0 {
		next := work[len(work)-1]
		work = work[:len(work)-1]
		if len(next.requests) == 0 {
			continue
		}
		a := try(next.requests)
		work = append(work, piece{requests: a.Left})
		lost := next.lost
		if a.Outcome == Lost {
			lost++
		}
		switch {
		case a.Outcome == Answered:
		case a.Outcome == NotSent, a.Outcome == Lost && lost < maxLost:
			work = append(work, piece{requests: a.Tried, lost: lost})
		case len(a.Tried) == 1:
			fail(a.Tried[0], a.Err)
		default:
			// After one more loss a half is halved again, since the whole piece had maxLost.
			half := len(a.Tried) / 2
			lost = min(lost, maxLost-1)
			work = append(work, piece{requests: a.Tried[half:], lost: lost}, piece{requests: a.Tried[:half], lost: lost})
		}
	}
}
