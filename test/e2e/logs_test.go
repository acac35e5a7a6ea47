// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/internal/testing/gate"
	"github.com/kiln-net/kiln/test/cluster"
	"github.com/kiln-net/kiln/test/oracle"
)

// allowedErrors lists errors in logs that are not defects, by a pattern of the line and of the specs in which they may appear.
var allowedErrors = []struct {
	line, specs *regexp.Regexp
	why         string
}{
	{
		line: regexp.MustCompile(`dpif_netdev\|ERR\|error receiving data from \S+_h: (Network is down|No such device)|dpif_netdev\|ERR\|Dropped \d+ log messages`), specs: anySpec,
		why: "ovs-vswitchd polls a veth that the deletion of its pod has just removed",
	},
	{
		line: regexp.MustCompile(`"Reconciler error".*kind \S+ is not served yet`), specs: regexp.MustCompile("^cluster-wide policies"),
		why: "the definition of the kind was applied a moment ago, and the API server does not serve it yet",
	},
	{
		line: regexp.MustCompile(`stream_ssl\|ERR\|(SSL_accept|Dropped \d+ log messages)`), specs: regexp.MustCompile("^the databases' ports"),
		why: "the spec opens connections and speaks no TLS",
	},
	{
		line: regexp.MustCompile(`"CNI operation failed".*"pod":"e2e-attacker/.*AcquireAddressFailed`), specs: regexp.MustCompile("^a hostile tenant"),
		why: "a pod with a refused annotation gets no address, and on a slow machine its request lasts until its deadline",
	},
	{
		line: regexp.MustCompile(`"CNI operation failed".*"pod":"silent/.*GatewayNotAnswering`), specs: regexp.MustCompile("^an underlay subnet starts pods when"),
		why: "no gateway answers in the VLAN of the spec",
	},
}

// byBusyMachine matches errors that a busy machine can cause. The gate reports them in busyErrors; elsewhere they are problems.
var byBusyMachine = regexp.MustCompile(`deadline exceeded|[Tt]imed out|context canceled|[Ff]ailed to (renew|update|acquire) [Ll]ease|leader election lost`)

// busyErrors are the errors that byBusyMachine matched, with their pods.
var busyErrors []string

var anySpec = regexp.MustCompile("")

const (
	// disruptive is the label of specs that kill processes or nodes. The other components may then log errors while they retry. A
	// crash is never allowed.
	disruptive = "disruptive"
	// mayRestart is the label of specs that end containers by other means than suite.kill: nodes lose power, or databases lose
	// their data, which restarts members and clients.
	mayRestart = "may-restart"
)

// components matches the names of the pods whose logs are read and whose restarts are counted.
var components = regexp.MustCompile(`^(kiln-operator|kube-ovn-|ovn-|ovs-)`)

// logs reads the logs of Kiln's pods in the lab continuously, because the kubelet removes the logs of deleted pods.
var logs = &logReader{read: map[string]int64{}}

type logReader struct {
	mu       sync.Mutex
	read     map[string]int64 // bytes by file
	problems []string
	stop     context.CancelFunc
}

// start judges all lines that are written from now on, until the suite ends.
func (l *logReader) start() {
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	l.scan(func(string) {}) // skips earlier lines
	go func() {
		for pause(ctx, 300*time.Millisecond) == nil {
			l.scan(l.judge)
		}
	}()
}

// scan calls judge for each new complete line.
func (l *logReader) scan(judge func(line string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	files, _ := filepath.Glob(filepath.Join(suite.Lab.LogDir("*"), "pods", cluster.Namespace+"_*", "*", "*.log"))
	for _, file := range files {
		pod := strings.Split(strings.TrimPrefix(filepath.Base(filepath.Dir(filepath.Dir(file))), cluster.Namespace+"_"), "_")[0]
		if !components.MatchString(pod) {
			continue
		}
		text, err := readFrom(file, l.read[file])
		if err != nil {
			continue // the pod was deleted
		}
		whole := bytes.LastIndexByte(text, '\n') + 1
		l.read[file] += int64(whole)
		for line := range strings.Lines(string(text[:whole])) {
			judge(pod + ": " + line)
		}
	}
}

func readFrom(file string, offset int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || info.Size() <= offset {
		return nil, err
	}
	text := make([]byte, info.Size()-offset)
	n, err := f.ReadAt(text, offset)
	return text[:n], err
}

func (l *logReader) judge(line string) {
	pod, text, _ := strings.Cut(line, ": ")
	severity, text := oracle.LogLine(text)
	if severity == oracle.Fine || severity == oracle.Error && allowed(text, CurrentSpecReport()) {
		return
	}
	if severity == oracle.Error && byBusyMachine.MatchString(text) && gate.Running() {
		busyErrors = append(busyErrors, strings.TrimSpace(pod+": "+text))
		return
	}
	l.problems = append(l.problems, pod+": "+text)
}

func allowed(line string, spec SpecReport) bool {
	if hasLabel(spec, disruptive) {
		return true
	}
	for _, a := range allowedErrors {
		if a.line.MatchString(line) && a.specs.MatchString(spec.FullText()) {
			return true
		}
	}
	return false
}

func hasLabel(spec SpecReport, label string) bool { return slices.Contains(spec.Labels(), label) }

// take returns the problems since the last call.
func (l *logReader) take() []string {
	l.scan(l.judge)
	l.mu.Lock()
	defer l.mu.Unlock()
	found := l.problems
	l.problems = nil
	return found
}

// counted holds the restart count of each pod at the end of the last spec; caused holds the number of restarts that the present
// spec causes.
var counted, caused = map[types.UID]int32{}, map[types.UID]int32{}

// causes records that the spec causes a restart by killing the main process of a pod.
func causes(pod *corev1.Pod) { caused[pod.UID]++ }

// unexpectedRestarts returns the restarts since the last call that the spec did not cause.
func unexpectedRestarts(ctx context.Context, spec SpecReport) ([]string, error) {
	pods, err := suite.Cluster.CoreV1().Pods(cluster.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	var found []string
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !components.MatchString(pod.Name) {
			continue
		}
		now, before := restarts(pod), counted[pod.UID]
		if now > before+caused[pod.UID] && !hasLabel(spec, mayRestart) {
			found = append(found, fmt.Sprintf("%s restarted %d times, %d expected: %s", pod.Name, now-before, caused[pod.UID], lastEnd(pod)))
		}
		counted[pod.UID] = now
	}
	return found, nil
}

// lastEnd describes how a pod's container ended before its last restart.
func lastEnd(pod *corev1.Pod) string {
	for _, s := range pod.Status.ContainerStatuses {
		if end := s.LastTerminationState.Terminated; end != nil {
			return fmt.Sprintf("%s, exit code %d, signal %d", end.Reason, end.ExitCode, end.Signal)
		}
	}
	return "unknown"
}

var _ = AfterEach(func(ctx SpecContext) {
	spec := CurrentSpecReport()
	problems := logs.take()
	restarted, err := unexpectedRestarts(ctx, spec)
	Expect(err).NotTo(HaveOccurred())
	clear(caused)
	if slices.Contains(spec.Labels(), upgradeFrom) { // an earlier version's log lines cannot be changed
		AddReportEntry("problems in the logs", len(problems))
		problems = nil
	}
	Expect(append(problems, restarted...)).To(BeEmpty(), "problems in the logs of Kiln's pods, and restarts of its containers")
}, NodeTimeout(time.Minute))
