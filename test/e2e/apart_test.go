// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/test/cluster"
	"github.com/kiln-net/kiln/test/oracle"
)

// target is a destination and its protocol: tcp, udp or ping.
type target struct {
	protocol string
	to       netip.AddrPort
}

func (t target) String() string { return t.protocol + " to " + t.to.String() }

// attemptsScript reads attempts, each with a number, a protocol, an address and a port, makes all of them at once, and prints the
// input of oracle.Outcomes. Each attempt has 1.2 s. It runs one process per attempt, because a few hundred attempts must not
// overload a small machine.
const attemptsScript = `dir=$(mktemp -d) && cd $dir || exit
try() {
	case $1 in
	tcp) : <>/dev/tcp/$2/$3 ;;
	udp) { echo hostname >&3 && read -r -n 1 -u 3; } 3<>/dev/udp/$2/$3 ;;
	ping) ping -n -q -c 1 -W 1 $2 ;;
	esac
}
while read -r number attempt; do
	try $attempt >$number 2>&1 && echo connected >$number &
	pids+=" $!"
	numbers+=" $number"
done <<<"$1"
{ sleep 1.2; kill -9 $pids; } >/dev/null 2>&1 &
killer=$!
wait $pids 2>/dev/null
kill $killer 2>/dev/null
for number in $numbers; do
	said=$(<$number)
	echo "$number ${said:-timed out}" | tr '\n' ' '
	echo
done
rm -r $dir`

// outcomesOf makes attempts from a pod, all at once. A client that cannot run is an error.
func outcomesOf(ctx context.Context, from *corev1.Pod, targets []target) ([]oracle.Outcome, error) {
	lines := make([]string, 0, len(targets))
	for i, t := range targets {
		lines = append(lines, fmt.Sprint(i, " ", t.protocol, " ", t.to.Addr(), " ", t.to.Port()))
	}
	out, err := suite.Cluster.Exec(ctx, from, "bash", "-c", attemptsScript, "attempts", strings.Join(lines, "\n"))
	if err != nil {
		return nil, err
	}
	return oracle.Outcomes(out, len(targets))
}

// arrived returns the attempts whose packets arrived.
func arrived(ctx context.Context, from *corev1.Pod, targets []target) ([]string, error) {
	outcomes, err := outcomesOf(ctx, from, targets)
	if err != nil {
		return nil, err
	}
	var list []string
	for i, o := range outcomes {
		if o.Arrived() {
			list = append(list, fmt.Sprintf("%s: %s", targets[i], o))
		}
	}
	return list, nil
}

// targetsOf returns a pod's HTTP server by TCP and UDP, and the pod by ping, in the families that the client has as well.
func targetsOf(from, to *corev1.Pod) []target {
	var list []target
	for _, a := range cluster.PodAddrs(to) {
		if _, both := cluster.InFamilyOf(cluster.PodAddrs(from), a); both {
			for _, protocol := range []string{tcp, udp, icmp} {
				list = append(list, target{protocol, netip.AddrPortFrom(a, cluster.HTTPPort)})
			}
		}
	}
	return list
}

// tries is the number of simultaneous attempts of a negative check, because one packet may be lost by chance.
const tries = 3

// apart waits until no packet of a pod arrives at another pod, by TCP, UDP and ICMP in every family, and then tries several times.
// The friend is the positive control before and after: its packets must arrive. A target that no other pod may reach is its own
// friend.
func apart(ctx context.Context, from, to, friend *corev1.Pod) {
	GinkgoHelper()
	apartAt(ctx, from, friend, targetsOf(from, to)...)
}

// apartAt is apart for the given targets only.
func apartAt(ctx context.Context, from, friend *corev1.Pod, targets ...target) {
	GinkgoHelper()
	Expect(targets).NotTo(BeEmpty(), "no family in common")
	control := func(when string) {
		GinkgoHelper()
		Eventually(func() ([]string, error) { return arrived(ctx, friend, targets) }).WithContext(ctx).WithTimeout(20*time.Second).
			Should(HaveLen(len(targets)), "%s: the packets of %s/%s arrive", when, friend.Namespace, friend.Name)
	}
	control("before")
	Eventually(func() ([]string, error) { return arrived(ctx, from, targets) }).WithContext(ctx).WithTimeout(30*time.Second).
		Should(BeEmpty(), "the packets of %s/%s arrive", from.Namespace, from.Name)
	var again []target
	for range tries {
		again = append(again, targets...)
	}
	Expect(arrived(ctx, from, again)).To(BeEmpty(), "the packets of %s/%s arrive", from.Namespace, from.Name)
	control("after")
}

// knockScript tries $3 TCP connections at once to $1 port $2 with bash only, and prints the input of oracle.Outcomes.
const knockScript = `for i in $(seq 0 $(($3-1))); do (
	o=$(timeout 2 bash -c '</dev/tcp/$1/$2' knock $1 $2 2>&1); s=$?
	case $s in 0) o=connected ;; 124) o="timed out" ;; esac; echo $i $o
) & done; wait`

// knock tries several TCP connections at once from a pod, a node or the outside host.
func knock(ctx context.Context, from origin, to netip.AddrPort) ([]oracle.Outcome, error) {
	out, err := from(ctx, "bash", "-c", knockScript, "knock", to.Addr().String(), strconv.Itoa(int(to.Port())), strconv.Itoa(tries))
	if err != nil {
		return nil, err
	}
	return oracle.Outcomes(out, tries)
}

// silent waits until TCP connections to an address get no answer, not even a reset, and then tries several times. The control runs
// before and after, and fails unless other clients get answers.
func silent(ctx context.Context, from origin, to netip.AddrPort, control func()) {
	GinkgoHelper()
	never(ctx, from, to, HaveEach(Or(Equal(oracle.Timeout), Equal(oracle.Unreachable))), control)
}

// notServed is silent for addresses of Services, where connections may also be refused.
func notServed(ctx context.Context, from origin, to netip.AddrPort, control func()) {
	GinkgoHelper()
	never(ctx, from, to, Not(ContainElement(oracle.Connected)), control)
}

func never(ctx context.Context, from origin, to netip.AddrPort, matcher types.GomegaMatcher, control func()) {
	GinkgoHelper()
	control()
	Eventually(knock).WithContext(ctx).WithArguments(from, to).WithTimeout(30*time.Second).Should(matcher, to.String())
	Expect(knock(ctx, from, to)).To(matcher, to.String())
	control()
}

// together runs checks concurrently, because negative checks mostly wait.
func together(checks ...func()) {
	GinkgoHelper()
	var running sync.WaitGroup
	for _, check := range checks {
		running.Go(func() {
			defer GinkgoRecover()
			check()
		})
	}
	running.Wait()
}

// refused waits until connections are refused, and then tries several times.
func refused(ctx context.Context, from origin, front netip.AddrPort) {
	GinkgoHelper()
	Eventually(knock).WithContext(ctx).WithArguments(from, front).WithTimeout(30*time.Second).Should(HaveEach(oracle.Refused), front.String())
	Expect(knock(ctx, from, front)).To(HaveEach(oracle.Refused), front.String())
}

// opens returns a positive control: connections are answered.
func opens(ctx context.Context, from origin, to netip.AddrPort) func() {
	return func() {
		GinkgoHelper()
		Eventually(knock).WithContext(ctx).WithArguments(from, to).WithTimeout(20*time.Second).Should(HaveEach(oracle.Connected), "control: %s", to)
	}
}
