// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kiln-net/kiln/test/cluster"
	"github.com/kiln-net/kiln/test/oracle"
)

// pair holds the pods of a watch: from and near are on the first worker; to is on the second worker and is the endpoint of the
// Service.
type pair struct {
	from, near, to *corev1.Pod
	service        *corev1.Service
}

// makePair creates a namespace with the pods and the Service of a watch.
func makePair(ctx context.Context, namespace string) *pair {
	GinkgoHelper()
	makeNamespace(ctx, namespace)
	p := &pair{}
	for _, pod := range []struct {
		name   string
		worker int
		into   **corev1.Pod
	}{{"from", 0, &p.from}, {"near", 0, &p.near}, {"to", 1, &p.to}} {
		server := cluster.Server(namespace, pod.name, suite.Workers[pod.worker])
		args := server.Spec.Containers[0].Args
		args[len(args)-1] = fmt.Sprintf("--udp-port=%d", udpPort)
		var err error
		*pod.into, err = suite.Cluster.Run(ctx, server)
		Expect(err).NotTo(HaveOccurred())
	}
	services := suite.Cluster.CoreV1().Services(namespace)
	_, err := services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "to"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "to"}, IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
			// The readiness probe fails while Open vSwitch restarts, and UDP clients would leave an endpoint that is not ready.
			PublishNotReadyAddresses: true,
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromInt32(cluster.HTTPPort)},
				{Name: "udp", Port: 80, TargetPort: intstr.FromInt32(udpPort), Protocol: corev1.ProtocolUDP},
			},
		},
	}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		Expect(err).NotTo(HaveOccurred())
	}
	p.service, err = services.Get(ctx, "to", metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	for _, like := range cluster.PodAddrs(p.to) {
		Expect(answerOf(ctx, fromPod(p.from), frontOf(p.service, like))).To(Equal("to"))
	}
	return p
}

// exchange makes the server at $2 port $3 echo numbers, one every $5 seconds, all on one connection or socket of protocol $1. It
// appends the input of oracle.Exchange to file $4, until the file $4.stop exists. Descriptor 9 never has data: reading from it is a
// pause without a process.
const exchange = `trap "" PIPE
exec 3<>"/dev/$1/$2/$3" 9<> <(:) || exit
{ while cat <&3; [ $1 = udp ]; do :; done | while read -r -d @ text; do n=${text##*[!0-9]}; [ -z "$n" ] || echo "answered $n $EPOCHREALTIME"; done; } >>$4 &
n=0
until [ -e $4.stop ]; do
	n=$((n+1)); echo "sent $n $EPOCHREALTIME" >>$4
	case $1 in
	udp) printf "echo %d@" $n >&3 ;;
	*) printf "GET /echo?msg=%d@ HTTP/1.1\r\nHost: flow\r\n\r\n" $n >&3 || exit ;;
	esac
	read -r -t $5 -u 9
done
echo end >>$4
wait`

// Protocols of the flows of a watch.
const (
	icmp = "ping"
	tcp  = "tcp"
	udp  = "udp"
)

// pace returns the time between two packets of a flow. A slow machine gets fewer of them, so that the flows do not take CPU time from
// the measured processes.
func pace(protocol string) time.Duration {
	usual := 100 * time.Millisecond
	if protocol == icmp {
		usual = 10 * time.Millisecond
	}
	return time.Duration(float64(usual) * max(1, calibration.slowdown))
}

// watched is one flow: ping, or requests on one TCP connection or one UDP socket.
type watched struct {
	name, protocol string
	target         netip.AddrPort
	sameNode       bool
	service        bool // the target is a Service
	file           string
	oracle.Flow
}

// watch is a set of flows between the pods of a pair: running connections, as users have them.
//
// Flows between nodes lose packets when an interface is added or removed on either node. With the userspace datapath, ovs-vswitchd
// then flushes and rereads its copy of the kernel's routes, and for these milliseconds drops packets to and from tunnels
// (docs/reference/components.md). A spec that expects no loss starts no pods on these nodes.
type watch struct {
	from  origin
	flows []*watched
	done  bool
	// resets allows connections through a Service to end. With the userspace datapath, conntrack is part of ovs-vswitchd, so a
	// restart loses the NAT state of these connections (docs/operations/upgrades.md).
	resets bool
}

// startFlows starts these flows in both families: ping, TCP and UDP between the nodes, TCP and UDP through the Service, ping within
// a node.
func startFlows(ctx context.Context, p *pair) *watch {
	GinkgoHelper()
	var list []*watched
	for _, like := range cluster.PodAddrs(p.to) {
		family := "IPv" + map[bool]string{true: "4", false: "6"}[like.Is4()]
		near, _ := cluster.InFamilyOf(cluster.PodAddrs(p.near), like)
		front := frontOf(p.service, like)
		list = append(list,
			&watched{name: "ping to the other node, " + family, protocol: icmp, target: netip.AddrPortFrom(like, 0)},
			&watched{name: "ping within the node, " + family, protocol: icmp, target: netip.AddrPortFrom(near, 0), sameNode: true},
			&watched{name: "TCP to the other node, " + family, protocol: tcp, target: netip.AddrPortFrom(like, cluster.HTTPPort)},
			&watched{name: "UDP to the other node, " + family, protocol: udp, target: netip.AddrPortFrom(like, udpPort)},
			&watched{name: "TCP through the Service, " + family, protocol: tcp, target: front, service: true},
			&watched{name: "UDP through the Service, " + family, protocol: udp, target: front, service: true},
		)
	}
	return startWatch(ctx, fromPod(p.from), list)
}

// tcpTo returns connections to a pod in both families.
func tcpTo(to *corev1.Pod, port uint16) []*watched {
	var list []*watched
	for _, a := range cluster.PodAddrs(to) {
		list = append(list, &watched{name: "TCP to " + a.String(), protocol: tcp, target: netip.AddrPortFrom(a, port)})
	}
	return list
}

// startWatch starts flows and waits until each has an answer.
func startWatch(ctx context.Context, from origin, list []*watched) *watch {
	GinkgoHelper()
	w := &watch{from: from, flows: list}
	dir := fmt.Sprintf("/tmp/watch-%d", time.Now().UnixNano())
	script := "mkdir " + dir + "\n"
	for i, f := range w.flows {
		f.file = fmt.Sprintf("%s/%d", dir, i)
		command := fmt.Sprintf(`bash -c "$1" exchange %s %s %d %s %g`, f.protocol, f.target.Addr(), f.target.Port(), f.file, pace(f.protocol).Seconds())
		if f.protocol == icmp {
			command = fmt.Sprintf("ping -D -n -i %g %s", pace(icmp).Seconds(), f.target.Addr())
		}
		script += fmt.Sprintf("setsid %s </dev/null >>%s 2>%[2]s.err & echo $! >%[2]s.pid\n", command, f.file)
	}
	_, err := w.from(ctx, "bash", "-c", script, "watch", exchange)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { // if the spec fails earlier
		if !w.done {
			_, _ = w.from(ctx, "sh", "-c", fmt.Sprintf("for f in %s/*.pid; do kill -- -$(cat $f); done", dir))
		}
	}, NodeTimeout(time.Minute))
	// A watch of flows that never ran would find no loss.
	for _, f := range w.flows {
		pattern := map[bool]string{true: "bytes from", false: "answered"}[f.protocol == icmp]
		Eventually(func() error {
			_, err := w.from(ctx, "grep", "-q", "-m1", pattern, f.file)
			return err
		}).WithContext(ctx).WithTimeout(20*time.Second).WithPolling(200*time.Millisecond).Should(Succeed(), "%s has an answer", f.name)
	}
	return w
}

// end stops the flows after the event under test. Each flow must get answers after the call. The result has all losses since the
// start, without connections whose end resets allows; a new connection to their targets must be answered at once.
func (w *watch) end(ctx context.Context) flows {
	GinkgoHelper()
	now := time.Now()
	Expect(pause(ctx, time.Second)).To(Succeed())
	w.interrupt(ctx)
	var problems []string
	var whole flows
	for _, f := range w.flows {
		switch err := w.read(ctx, f, now); {
		case err != nil && w.resets && f.protocol == tcp && f.service:
			AddReportEntry("reset", fmt.Sprintf("%s: %v", f.name, err))
			connectsAtOnce(ctx, w.from, f.target)
			continue
		case err != nil:
			problems = append(problems, fmt.Sprintf("%s: %v", f.name, err))
		}
		whole = append(whole, f)
	}
	w.kill(ctx)
	AddReportEntry("flows", flows(w.flows).String())
	Expect(problems).To(BeEmpty(), "flows that died")
	return whole
}

// interrupt stops the senders and completes the records.
func (w *watch) interrupt(ctx context.Context) {
	GinkgoHelper()
	stop := ""
	for _, f := range w.flows {
		stop += map[bool]string{true: "kill -INT $(cat " + f.file + ".pid)\n", false: "touch " + f.file + ".stop\n"}[f.protocol == icmp]
	}
	_, err := w.from(ctx, "sh", "-c", stop)
	Expect(err).NotTo(HaveOccurred())
}

// kill ends the remaining processes of the flows.
func (w *watch) kill(ctx context.Context) {
	GinkgoHelper()
	script := ""
	for _, f := range w.flows {
		script += "kill -- -$(cat " + f.file + ".pid) 2>/dev/null\n"
	}
	_, err := w.from(ctx, "sh", "-c", script+"true")
	Expect(err).NotTo(HaveOccurred())
	w.done = true
}

// read reads the record of a flow. It waits for retransmissions of TCP and the last answers.
func (w *watch) read(ctx context.Context, f *watched, now time.Time) error {
	for deadline := time.Now().Add(30 * time.Second); ; {
		out, err := w.from(ctx, "cat", f.file, f.file+".err")
		if err != nil {
			return err
		}
		if f.protocol == icmp {
			f.Flow, err = oracle.Ping(out)
		} else {
			f.Flow, err = oracle.Exchange(out)
		}
		if err == nil {
			err = f.Check(now)
		}
		late := time.Now().After(deadline)
		if late || f.protocol == icmp || err == nil && (f.protocol == udp || f.Lost() == 0) {
			return err
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// flows are the results of a watch.
type flows []*watched

func (list flows) String() string {
	lines := make([]string, 0, len(list))
	for _, f := range list {
		slowest := ""
		if f.Slowest > 0 {
			slowest = fmt.Sprintf(", the slowest after %s", f.Slowest.Round(time.Millisecond))
		}
		lines = append(lines, fmt.Sprintf("%s: %s%s", f.name, f.Flow, slowest))
	}
	return strings.Join(lines, "\n")
}

// losses returns the flows that lost packets or requests.
func (list flows) losses() []string { return list.gapsOver(0) }

// gapsOver returns the gaps of more than d. It computes their length from the number of packets, because a busy machine pauses
// senders too.
func (list flows) gapsOver(d time.Duration) []string {
	return list.gaps(func(f *watched, g oracle.Gap) bool { return time.Duration(g.Packets)*pace(f.protocol) > d })
}

// gapsLongerThan returns the gaps that took more than boundAt(usual); usual is a value of docs/. It reports the longest gap.
func (list flows) gapsLongerThan(usual time.Duration) []string {
	longest := measured{What: "longest gap", Limit: timesThree(usual, 1).Seconds()}
	found := list.gaps(func(f *watched, g oracle.Gap) bool {
		began, ended := g.Began, g.Ended
		if began.IsZero() {
			began = ended
		}
		if ended.IsZero() {
			ended = began.Add(g.Took)
		}
		limit := boundAt(usual, began, ended)
		if took := g.Took.Seconds(); took > longest.Seconds {
			longest = measured{"longest gap: " + f.name, took, limit.Seconds()}
		}
		return g.Took > limit
	})
	AddReportEntry("timing", longest)
	return found
}

func (list flows) gaps(of func(*watched, oracle.Gap) bool) []string {
	var found []string
	for _, f := range list {
		for _, g := range f.Gaps() {
			if of(f, g) {
				found = append(found, fmt.Sprintf("%s: %s", f.name, g))
			}
		}
	}
	return found
}

// ofTCP returns the TCP flows, which retransmit and therefore must not lose anything.
func (list flows) ofTCP() flows {
	return slices.DeleteFunc(slices.Clone(list), func(f *watched) bool { return f.protocol != tcp })
}

// withinNode returns the flows that no tunnel carries.
func (list flows) withinNode() flows {
	return slices.DeleteFunc(slices.Clone(list), func(f *watched) bool { return !f.sameNode })
}

// named returns the flow with this name.
func (list flows) named(name string) *watched {
	GinkgoHelper()
	i := slices.IndexFunc(list, func(f *watched) bool { return f.name == name })
	Expect(i).To(BeNumerically(">=", 0), "flow %q", name)
	return list[i]
}
