// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Connection is a new TCP connection with one request.
type Connection struct {
	Begun time.Time
	// Took is the time until the answer.
	Took time.Duration
	// Retransmitted is the number of SYNs that the client's network namespace retransmitted meanwhile.
	Retransmitted int
	// Failure is the reason why there was no answer, or "".
	Failure string
}

// Connections reads the record of connections that were opened one after another, one per line:
//
//	answered 1763813000.123456 1763813000.125001 0
//	failed 1763813000.323456 Connection refused
//	end
//
// A record without the line `end` is an error: the loop ended before the event under test.
func Connections(record string) ([]Connection, error) {
	var list []Connection
	ended := false
	for line := range strings.Lines(record) {
		fields := strings.Fields(line)
		if len(fields) == 1 && fields[0] == "end" {
			ended = true
		}
		if len(fields) < 2 || fields[0] != "answered" && fields[0] != "failed" {
			continue
		}
		begun, err := timeOf(fields[1])
		if err != nil {
			return nil, err
		}
		c := Connection{Begun: begun}
		if fields[0] == "failed" {
			c.Failure = strings.Join(append([]string{"failed"}, fields[2:]...), " ")
		} else {
			if c.Took, c.Retransmitted, err = answered(begun, fields[2:]); err != nil {
				return nil, fmt.Errorf("line %q of a record: %w", line, err)
			}
		}
		list = append(list, c)
	}
	if !ended {
		return list, fmt.Errorf("the loop ended after %d connections, before it was asked to: %s", len(list), tail(record))
	}
	return list, nil
}

// answered reads the time of the answer and the number of retransmitted SYNs.
func answered(begun time.Time, fields []string) (took time.Duration, retransmitted int, err error) {
	if len(fields) < 2 {
		return 0, 0, errors.New("the time of the answer or the number of SYNs is missing")
	}
	at, err := timeOf(fields[0])
	if err != nil {
		return 0, 0, err
	}
	retransmitted, err = strconv.Atoi(fields[1])
	return at.Sub(begun), retransmitted, err
}

// synTimeout is below TCP's first retransmission time-out of a SYN, one second.
const synTimeout = 900 * time.Millisecond

// Lost returns the connections that failed, took more than 900 ms while a SYN was retransmitted, or took longer than limit. A lost
// SYN does not fail a connection, which then succeeds a second later. On a busy machine a connection may take as long for other
// reasons.
func Lost(list []Connection, limit time.Duration) []string {
	var lost []string
	for i, c := range list {
		switch {
		case c.Failure != "":
			lost = append(lost, fmt.Sprintf("connection %d of %d at %s: %s", i+1, len(list), c.Begun.Format(time.TimeOnly), c.Failure))
		case c.Took > synTimeout && c.Retransmitted > 0:
			lost = append(lost, fmt.Sprintf("connection %d of %d at %s: a SYN was lost, answered after %s", i+1, len(list), c.Begun.Format(time.TimeOnly), c.Took))
		case c.Took > limit:
			lost = append(lost, fmt.Sprintf("connection %d of %d at %s: answered after %s", i+1, len(list), c.Begun.Format(time.TimeOnly), c.Took))
		}
	}
	return lost
}

// Failed returns the connections without an answer.
func Failed(list []Connection) []string {
	answered := func(c Connection) bool { return c.Failure == "" }
	return Lost(slices.DeleteFunc(slices.Clone(list), answered), 0)
}

// Outcome is the result of one attempt to reach an address.
type Outcome string

// Outcomes of an attempt. Refused means that the packets arrived: the target's own stack, or a proxy for it, has answered.
const (
	Connected   Outcome = "connected"
	Refused     Outcome = "refused"
	Timeout     Outcome = "timeout"
	Unreachable Outcome = "unreachable"
)

// Arrived reports whether the packets of an attempt arrived.
func (o Outcome) Arrived() bool { return o == Connected || o == Refused }

// Outcomes reads the outcomes of n attempts, one per line: the number of the attempt, from 0, and the output of the client, which
// is empty when it connects. A missing attempt or an unknown output is an error, because a client that cannot run proves nothing.
func Outcomes(output string, n int) ([]Outcome, error) {
	outcomes := make([]Outcome, n)
	for line := range strings.Lines(output) {
		number, said, _ := strings.Cut(strings.TrimSpace(line), " ")
		if number == "" {
			continue
		}
		i, err := strconv.Atoi(number)
		if err != nil || i < 0 || i >= n {
			return nil, fmt.Errorf("line %q is no attempt of %d", line, n)
		}
		if outcomes[i], err = outcomeOf(said); err != nil {
			return nil, fmt.Errorf("attempt %d: %w", i, err)
		}
	}
	for i, o := range outcomes {
		if o == "" {
			return nil, fmt.Errorf("attempt %d has no outcome: %s", i, tail(output))
		}
	}
	return outcomes, nil
}

// outcomeOf recognizes the output of agnhost, ping and bash.
func outcomeOf(said string) (Outcome, error) {
	for _, known := range []struct {
		text    string
		outcome Outcome
	}{
		{"REFUSED", Refused}, {"Connection refused", Refused},
		{"TIMEOUT", Timeout}, {"timed out", Timeout}, {"0 received", Timeout},
		{"nreachable", Unreachable}, {"No route to host", Unreachable}, {"no route to host", Unreachable},
	} {
		if strings.Contains(said, known.text) {
			return known.outcome, nil
		}
	}
	if said == "" || said == string(Connected) {
		return Connected, nil
	}
	return "", fmt.Errorf("a client printed %q", said)
}
