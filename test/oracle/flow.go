// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package oracle judges records of end-to-end tests: the output of ping, of long-lived connections and of daemons. Every function is pure,
// so that its table test needs no cluster.
package oracle

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Answer is the first answer to one packet or request.
type Answer struct {
	Number int // of the packet, from 1
	At     time.Time
}

// Flow is a series of numbered packets or requests and the answers to them.
type Flow struct {
	// Sent is the number of packets or requests, including those after the last answer.
	Sent int
	// Answers are sorted by number and have no duplicates.
	Answers []Answer
	// Interval is the mean time between two packets.
	Interval time.Duration
	// Slowest is the longest time between a request and its answer, for flows that record when they send.
	Slowest time.Duration
	// InFlight is the number of packets at the end that may lack an answer because the sender ended before it could arrive.
	InFlight int
}

// Gap is a time without answers.
type Gap struct {
	First   int // packet without an answer
	Packets int
	Took    time.Duration
	// Began is the time of the last answer before the gap, Ended the time of the first one after it. They are zero if there is none.
	Began, Ended time.Time
	// Open is true when no answer followed.
	Open bool
}

func (g Gap) String() string {
	end := ""
	if g.Open {
		end = ", until the end"
	}
	return fmt.Sprintf("%d from packet %d in %s%s", g.Packets, g.First, g.Took.Round(10*time.Millisecond), end)
}

// pingInFlight is the number of packets whose answers SIGINT may cut off: ping prints its summary at once and does not wait for
// answers.
const pingInFlight = 20

var (
	// echoReply matches an answer, with the time that `ping -D` prints. It does not match `From … icmp_seq=7 Destination Host
	// Unreachable` or `no answer yet for icmp_seq=7`.
	echoReply = regexp.MustCompile(`(?m)^\[([0-9.]+)\] \d+ bytes from .*icmp_seq=(\d+)`)
	summary   = regexp.MustCompile(`(?m)^(\d+) packets transmitted, (\d+) received,.* time (\d+)ms`)
)

// sequences is the number of packets after which ping's numbers wrap to 0.
const sequences = 1 << 16

// Ping reads the output of a `ping -D` that SIGINT ended. Output without ping's summary is an error.
func Ping(output string) (Flow, error) {
	s := summary.FindStringSubmatch(output)
	if s == nil {
		return Flow{}, fmt.Errorf("ping printed no summary: it was not ended by SIGINT, or never started: %s", tail(output))
	}
	sent, _ := strconv.Atoi(s[1])
	took, _ := strconv.Atoi(s[3])
	f := Flow{Sent: sent, InFlight: pingInFlight}
	if sent > 0 {
		f.Interval = time.Duration(took) * time.Millisecond / time.Duration(sent)
	}
	last := 0
	for _, m := range echoReply.FindAllStringSubmatch(output, -1) {
		at, err := timeOf(m[1])
		if err != nil {
			return f, err
		}
		number, _ := strconv.Atoi(m[2])
		for number+sequences/2 < last {
			number += sequences
		}
		last = max(last, number)
		f.Answers = append(f.Answers, Answer{Number: number, At: at})
	}
	f.Answers = firsts(f.Answers)
	return f, nil
}

// Exchange reads the record of requests on one connection or socket, one per line:
//
//	sent 17 1763813000.123456
//	answered 17 1763813000.124001
//	end
//
// The record ends with a line `end` when the sender was asked to stop. Otherwise the connection ended by itself, which is an error.
func Exchange(record string) (Flow, error) {
	var f Flow
	sent := map[int]time.Time{}
	ended := false
	for line := range strings.Lines(record) {
		fields := strings.Fields(line)
		if len(fields) == 1 && fields[0] == "end" {
			ended = true
		}
		if len(fields) != 3 {
			continue
		}
		number, err := strconv.Atoi(fields[1])
		if err != nil {
			return f, fmt.Errorf("line %q of a record: %w", line, err)
		}
		at, err := timeOf(fields[2])
		if err != nil {
			return f, err
		}
		switch fields[0] {
		case "sent":
			f.Sent = max(f.Sent, number)
			sent[number] = at
		case "answered":
			f.Answers = append(f.Answers, Answer{Number: number, At: at})
		}
	}
	f.Answers = firsts(f.Answers)
	for _, a := range f.Answers {
		f.Slowest = max(f.Slowest, a.At.Sub(sent[a.Number]))
	}
	if f.Sent > 1 {
		f.Interval = sent[f.Sent].Sub(sent[1]) / time.Duration(f.Sent-1)
	}
	if !ended {
		return f, fmt.Errorf("the connection ended after %d requests and %d answers: %s", f.Sent, len(f.Answers), tail(record))
	}
	return f, nil
}

// Gaps returns the times without an answer, from the first packet to the last. Losses within a second of each other are one gap.
func (f Flow) Gaps() []Gap {
	var gaps []Gap
	var ended time.Time
	before := Answer{}
	add := func(missing int, took time.Duration, end time.Time) {
		if len(gaps) == 0 || before.At.Sub(ended) >= time.Second {
			gaps = append(gaps, Gap{First: before.Number + 1, Began: before.At})
		}
		last := &gaps[len(gaps)-1]
		last.Packets += missing
		last.Took += took
		last.Ended = end
	}
	for _, a := range f.Answers {
		if missing := a.Number - before.Number - 1; missing > 0 {
			took := a.At.Sub(before.At)
			if before.Number == 0 {
				took = time.Duration(missing) * f.Interval
			}
			add(missing, took, a.At)
			ended = a.At
		}
		before = a
	}
	if missing := f.Sent - before.Number; missing > f.InFlight || missing > 0 && before.Number == 0 {
		add(missing, time.Duration(missing)*f.Interval, time.Time{})
		gaps[len(gaps)-1].Open = true
	}
	return gaps
}

// Further returns the gaps that can have the same cause as the n longest ones: they have more than few packets, and more than a third of those in the
// shortest of the n.
func (f Flow) Further(n, few int) []Gap {
	gaps := f.Gaps()
	slices.SortStableFunc(gaps, func(a, b Gap) int { return b.Packets - a.Packets })
	n = min(n, len(gaps))
	if n > 0 {
		few = max(few, gaps[n-1].Packets/3)
	}
	return slices.DeleteFunc(gaps[n:], func(g Gap) bool { return g.Packets <= few })
}

// Lost is the number of packets without an answer.
func (f Flow) Lost() int {
	lost := 0
	for _, g := range f.Gaps() {
		lost += g.Packets
	}
	return lost
}

// AnsweredAfter reports whether an answer arrived after a moment.
func (f Flow) AnsweredAfter(moment time.Time) bool {
	return slices.ContainsFunc(f.Answers, func(a Answer) bool { return a.At.After(moment) })
}

// Check returns an error when hardly anything was sent, so that the flow proves nothing, or when no answer arrived after moment.
func (f Flow) Check(moment time.Time) error {
	const few = 5
	if f.Sent < few {
		return fmt.Errorf("only %d packets were sent", f.Sent)
	}
	if !f.AnsweredAfter(moment) {
		return fmt.Errorf("no answer after %s: the flow is dead; %s", moment.Format(time.TimeOnly), f)
	}
	return nil
}

func (f Flow) String() string {
	if gaps := f.Gaps(); len(gaps) > 0 {
		return fmt.Sprintf("%d of %d packets without an answer, in %d gaps: %v", f.Lost(), f.Sent, len(gaps), gaps)
	}
	return fmt.Sprintf("all %d packets answered", f.Sent)
}

// firsts sorts answers by number and keeps the first of each.
func firsts(answers []Answer) []Answer {
	slices.SortStableFunc(answers, func(a, b Answer) int { return a.Number - b.Number })
	return slices.CompactFunc(answers, func(a, b Answer) bool { return a.Number == b.Number })
}

// timeOf parses seconds since 1970 with up to six fractional digits.
func timeOf(text string) (time.Time, error) {
	whole, fraction, _ := strings.Cut(text, ".")
	s, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("time %q: %w", text, err)
	}
	micros, err := strconv.ParseInt((fraction + "000000")[:6], 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("time %q: %w", text, err)
	}
	return time.Unix(s, micros*1000), nil
}

// tail returns the end of a text, for an error message.
func tail(text string) string {
	const length = 300
	return strconv.Quote(text[max(0, len(text)-length):])
}
