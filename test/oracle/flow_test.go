// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package oracle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/test/oracle"
)

// start is the time of packet 0; packets follow every 10 ms.
const start = 1763813000

func at(packet int) time.Time {
	return time.Unix(start, 0).Add(time.Duration(packet) * 10 * time.Millisecond)
}

func stamp(packet int) string {
	return fmt.Sprintf("%d.%06d", at(packet).Unix(), at(packet).Nanosecond()/1000)
}

func replies(from, to int) string {
	var b strings.Builder
	for n := from; n <= to; n++ {
		fmt.Fprintf(&b, "[%s] 64 bytes from 10.16.0.5: icmp_seq=%d ttl=64 time=0.41 ms\n", stamp(n), n%65536)
	}
	return b.String()
}

func ended(sent, received int, extra string) string {
	return fmt.Sprintf("\n--- 10.16.0.5 ping statistics ---\n%d packets transmitted, %d received,%s 0%% packet loss, time %dms\nrtt min/avg/max/mdev = 0.1/0.2/0.3/0.1 ms\n",
		sent, received, extra, sent*10)
}

func TestPing(t *testing.T) {
	unreachable := strings.ReplaceAll(replies(101, 300), "64 bytes from 10.16.0.5: icmp_seq", "From 10.16.0.1 icmp_seq")
	notYet := ""
	for n := 101; n <= 200; n++ {
		notYet += fmt.Sprintf("[%s] no answer yet for icmp_seq=%d\n", stamp(n), n)
	}
	for name, c := range map[string]struct {
		output string
		lost   int
		gaps   string
		works  bool // answered after packet 250
	}{
		"everything answered":                        {replies(1, 300) + ended(300, 300, ""), 0, "[]", true},
		"a gap in the middle":                        {replies(1, 100) + replies(111, 300) + ended(300, 290, ""), 10, "[10 from packet 101 in 110ms]", true},
		"two gaps less than a second apart":          {replies(1, 100) + replies(103, 150) + replies(152, 300) + ended(300, 297, ""), 3, "[3 from packet 101 in 50ms]", true},
		"two gaps more than a second apart":          {replies(1, 100) + replies(103, 250) + replies(252, 300) + ended(300, 297, ""), 3, "[2 from packet 101 in 30ms 1 from packet 251 in 20ms]", true},
		"the flow dies for good":                     {replies(1, 100) + ended(300, 100, ""), 200, "[200 from packet 101 in 2s, until the end]", false},
		"answers on their way when ping ended":       {replies(1, 295) + ended(300, 295, ""), 0, "[]", true},
		"nothing answered":                           {ended(300, 0, ""), 300, "[300 from packet 1 in 3s, until the end]", false},
		"only a few packets, none answered":          {ended(10, 0, ""), 10, "[10 from packet 1 in 100ms, until the end]", false},
		"the first packets are lost":                 {replies(11, 300) + ended(300, 290, ""), 10, "[10 from packet 1 in 100ms]", true},
		"unreachable is no answer":                   {replies(1, 100) + unreachable + ended(300, 100, " +200 errors,"), 200, "[200 from packet 101 in 2s, until the end]", false},
		"ping -O prints a line for each late answer": {replies(1, 100) + notYet + replies(201, 300) + ended(300, 200, ""), 100, "[100 from packet 101 in 1.01s]", true},
		"duplicates count once":                      {replies(1, 300) + replies(7, 9) + ended(300, 300, " +3 duplicates,"), 0, "[]", true},
		"numbers begin again at 65536":               {replies(1, 65700) + ended(65700, 65700, ""), 0, "[]", true},
		"a gap where numbers begin again":            {replies(1, 65530) + replies(65541, 65700) + ended(65700, 65690, ""), 10, "[10 from packet 65531 in 110ms]", true},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := oracle.Ping(c.output)
			if err != nil {
				t.Fatal(err)
			}
			if f.Lost() != c.lost || fmt.Sprint(f.Gaps()) != c.gaps {
				t.Errorf("lost %d in %v, want %d in %s", f.Lost(), f.Gaps(), c.lost, c.gaps)
			}
			if works := f.Check(at(250)) == nil; works != c.works {
				t.Errorf("works %v (%v), want %v", works, f.Check(at(250)), c.works)
			}
		})
	}
}

func TestPingWithoutASummary(t *testing.T) {
	for name, output := range map[string]string{
		"ping was killed":    replies(1, 300),
		"ping never started": "ping: connect: Network is unreachable\n",
		"no output":          "",
	} {
		if _, err := oracle.Ping(output); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestExchange(t *testing.T) {
	record := func(sent int, answered ...int) string {
		var b strings.Builder
		for n := 1; n <= sent; n++ {
			fmt.Fprintf(&b, "sent %d %s\n", n, stamp(n))
		}
		for _, n := range answered {
			fmt.Fprintf(&b, "answered %d %s\n", n, stamp(n+1))
		}
		return b.String()
	}
	for name, c := range map[string]struct {
		record string
		lost   int
		works  bool // answered after packet 8
		broken bool
	}{
		"everything answered":          {record: record(10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10) + "end\n", works: true},
		"one without an answer":        {record: record(10, 1, 2, 3, 5, 6, 7, 8, 9, 10) + "end\n", lost: 1, works: true},
		"the last one has no answer":   {record: record(10, 1, 2, 3, 4, 5, 6, 7, 8, 9) + "end\n", lost: 1, works: true},
		"no answers after the fourth":  {record: record(10, 1, 2, 3, 4) + "end\n", lost: 6},
		"no answers at all":            {record: record(10) + "end\n", lost: 10},
		"the connection was reset":     {record: record(10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), works: true, broken: true},
		"nothing was sent":             {record: "end\n"},
		"an answer in the wrong order": {record: record(10, 1, 3, 2, 4, 5, 6, 7, 8, 9, 10) + "end\n", works: true},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := oracle.Exchange(c.record)
			if (err != nil) != c.broken {
				t.Errorf("error %v, want one: %v", err, c.broken)
			}
			if f.Lost() != c.lost {
				t.Errorf("lost %d, want %d", f.Lost(), c.lost)
			}
			if works := f.Check(at(8)) == nil; works != c.works {
				t.Errorf("works %v (%v), want %v", works, f.Check(at(8)), c.works)
			}
		})
	}
	f, err := oracle.Exchange("sent 1 10.0\nanswered 1 10.5\nsent 2 11.0\nanswered 2 13.25\nend\n")
	if err != nil || f.Slowest != 2250*time.Millisecond || f.Interval != time.Second {
		t.Errorf("slowest %s, interval %s, %v", f.Slowest, f.Interval, err)
	}
}

func TestFurther(t *testing.T) {
	// The answers before each gap, and its packets.
	flow := func(gaps ...int) oracle.Flow {
		var f oracle.Flow
		answer := func() {
			for range 150 { // more than a second
				f.Sent++
				f.Answers = append(f.Answers, oracle.Answer{Number: f.Sent, At: at(f.Sent)})
			}
		}
		for _, g := range gaps {
			answer()
			f.Sent += g
		}
		answer()
		return f
	}
	for name, c := range map[string]struct {
		flow   oracle.Flow
		n, few int
		want   string
	}{
		"nothing lost":                         {flow(), 2, 5, "[]"},
		"fewer gaps than expected":             {flow(30), 2, 5, "[]"},
		"the expected gaps":                    {flow(30, 40), 2, 5, "[]"},
		"a short gap":                          {flow(30, 10, 40), 2, 5, "[]"},
		"one restart too many":                 {flow(30, 11, 40), 2, 5, "[11 from packet 331 in 120ms]"},
		"few packets":                          {flow(5, 6, 6), 2, 5, "[]"},
		"more than few":                        {flow(6, 6, 6), 2, 5, "[6 from packet 463 in 70ms]"},
		"no gap is expected":                   {flow(6), 0, 5, "[6 from packet 151 in 70ms]"},
		"no gap is expected, and few are lost": {flow(5), 0, 5, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fmt.Sprint(c.flow.Further(c.n, c.few)); got != c.want {
				t.Errorf("further gaps %s, want %s", got, c.want)
			}
		})
	}
}
