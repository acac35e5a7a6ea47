// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/kiln-net/kiln/test/oracle"
)

// connect opens a connection to $1 port $2, requests $3, and prints the time of the start, the time of the answer, the number of
// SYNs retransmitted meanwhile, and the body. One shell measures both times, so that they do not include the start of a process.
const connect = `syns() { local i names values; { read -r -a names; read -r -a values; } </proc/net/netstat; for i in ${!names[@]}; do [ ${names[i]} != TCPSynRetrans ] || sent=${values[i]}; done; }
syns; before=$sent; begun=$EPOCHREALTIME
exec 3<>"/dev/tcp/$1/$2" || exit
printf "GET %s HTTP/1.0\r\nHost: test\r\n\r\n" "$3" | cat >&3
read -r status <&3; answered=$EPOCHREALTIME; syns
[[ $status = *" 200 "* ]] || { echo "answer $status"; exit 1; }
while read -r line && [ "$line" != $'\r' ]; do :; done <&3
read -r body <&3
echo answered $begun $answered $((sent-before)) "$body"`

// connectLoop opens one connection after another, each with command $1, to $2 port $3, until the file $4.stop exists. It prints the
// input of oracle.Connections.
const connectLoop = `exec 9<> <(:)
until [ -e $4.stop ]; do
	begun=$EPOCHREALTIME
	if out=$(timeout 5 bash -c "$1" connect $2 $3 /hostname 2>&1); then echo $out; else echo failed $begun ${out//$'\n'/ }; fi
	read -r -t 0.02 -u 9
done
echo end`

// usualLimit is the time limit of a connection on a machine that is not busy.
const usualLimit = 900 * time.Millisecond

// calibrateConnections connects between two pods at rest. The slowest connection raises lossLimit on a busy machine.
func calibrateConnections(ctx context.Context, from origin, to netip.AddrPort) {
	GinkgoHelper()
	var slowest time.Duration
	for range 20 {
		list, _, err := connectOnce(ctx, from, to)
		Expect(err).NotTo(HaveOccurred())
		Expect(oracle.Lost(list, time.Hour)).To(BeEmpty(), "a control connection to %s", to)
		slowest = max(slowest, list[0].Took)
	}
	calibration.connection = max(calibration.connection, slowest)
}

// lossLimit is the time in which a connection must be answered, even when no SYN was lost.
func lossLimit() time.Duration { return max(usualLimit, 3*calibration.connection) }

// connectOnce opens one connection, and returns it and the name of the server.
func connectOnce(ctx context.Context, from origin, to netip.AddrPort) ([]oracle.Connection, string, error) {
	out, err := from(ctx, "bash", "-c", `out=$(timeout 20 bash -c "$1" connect $2 $3 /hostname 2>&1) && echo "$out" || echo failed $EPOCHREALTIME ${out//$'\n'/ }; echo end`,
		"once", connect, to.Addr().String(), strconv.Itoa(int(to.Port())))
	if err != nil {
		return nil, "", err
	}
	list, err := oracle.Connections(out)
	if err != nil || len(list) != 1 {
		return nil, "", fmt.Errorf("%d connections: %q, %w", len(list), out, err)
	}
	fields := strings.Fields(out)
	return list, fields[len(fields)-2], nil
}

// newSockets is how many sockets connectsAtOnce may try in a spec without the label timed. On a busy machine, or while pods come and go on the nodes, a SYN can be
// lost; a defect that loses the first connection of each client loses all of them.
const newSockets = 3

// connectsAtOnce opens a connection from a new socket, which must be answered before TCP would retransmit a lost SYN. It returns the name of the server. A spec
// with the label timed has one socket, and its connection a limit in seconds; the others have newSockets, and lose a connection only with its SYN.
func connectsAtOnce(ctx context.Context, from origin, to netip.AddrPort) string {
	GinkgoHelper()
	tries, limit := newSockets, time.Hour
	if hasLabel(CurrentSpecReport(), timed) {
		tries, limit = 1, lossLimit()
	}
	var lost []string
	for range tries {
		list, server, err := connectOnce(ctx, from, to)
		Expect(err).NotTo(HaveOccurred())
		now := oracle.Lost(list, limit)
		if len(now) == 0 {
			if len(lost) > 0 {
				AddReportEntry("lost connections to "+to.String(), lost)
			}
			return server
		}
		lost = append(lost, now...)
	}
	Fail(fmt.Sprintf("%d of %d new connections to %s were lost: %v", tries, tries, to, lost))
	return ""
}

// dialer continuously opens connections.
type dialer struct {
	from origin
	to   netip.AddrPort
	file string
	done bool
}

// startConnections opens one connection after another until the dialer is ended.
func startConnections(ctx context.Context, from origin, to netip.AddrPort) *dialer {
	GinkgoHelper()
	d := &dialer{from: from, to: to, file: fmt.Sprintf("/tmp/dialer-%d", time.Now().UnixNano())}
	_, err := from(ctx, "bash", "-c", `bash -c "$1" loop "$2" $3 $4 $5 </dev/null >$5 2>$5.err &`, "start",
		connectLoop, connect, to.Addr().String(), strconv.Itoa(int(to.Port())), d.file)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { // if the spec fails earlier
		if !d.done {
			_, _ = from(ctx, "touch", d.file+".stop")
		}
	}, NodeTimeout(time.Minute))
	return d
}

// losses waits for a connection that begins after the call, ends the loop, and returns the lost connections and the number of all
// connections.
func (d *dialer) losses(ctx context.Context) (lost []string, all int) {
	GinkgoHelper()
	list := d.connections(ctx)
	return oracle.Lost(list, lossLimit()), len(list)
}

// connections is losses for callers that evaluate the connections themselves.
func (d *dialer) connections(ctx context.Context) []oracle.Connection {
	GinkgoHelper()
	now := time.Now()
	Expect(pause(ctx, time.Second)).To(Succeed())
	_, err := d.from(ctx, "touch", d.file+".stop")
	Expect(err).NotTo(HaveOccurred())
	d.done = true
	var list []oracle.Connection
	Eventually(func() error {
		out, err := d.from(ctx, "cat", d.file, d.file+".err")
		if err != nil {
			return err
		}
		list, err = oracle.Connections(out)
		return err
	}).WithContext(ctx).WithTimeout(30*time.Second).WithPolling(200*time.Millisecond).Should(Succeed(), "the loop to %s ends", d.to)
	Expect(slices.ContainsFunc(list, func(c oracle.Connection) bool { return c.Begun.After(now) && c.Failure == "" })).To(BeTrue(),
		"a connection to %s after the last change: %v", d.to, oracle.Lost(list, lossLimit()))
	lost := oracle.Lost(list, lossLimit())
	AddReportEntry("connections to "+d.to.String(), fmt.Sprintf("%d of %d lost: %v", len(lost), len(list), lost))
	return list
}
