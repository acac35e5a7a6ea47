// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/version"
)

const (
	// versionTimeout limits one query, and versionRetry is the delay before a failed query is retried.
	versionTimeout = 5 * time.Second
	versionRetry   = time.Minute
	// versionQuestions is the maximum number of queries in flight.
	versionQuestions = 16
	// versionNodes is the maximum number of nodes that the status names per version.
	versionNodes = 10
)

// containerKey identifies one start of a pod's container. Its versions do not change until it ends.
type containerKey struct {
	pod       types.UID
	container string
}

func containerOf(pod *corev1.Pod) containerKey {
	key := containerKey{pod: pod.UID}
	if len(pod.Status.ContainerStatuses) > 0 {
		key.container = pod.Status.ContainerStatuses[0].ContainerID
	}
	return key
}

// Versions caches the versions that containers report. A goroutine queries each container once, when it is ready; a pass
// never waits.
type Versions struct {
	// get queries a process: version.Get.
	get func(context.Context, netip.AddrPort) (version.Programs, error)
	// Wake gets an event when a query has ended.
	Wake  chan event.GenericEvent
	slots chan struct{}

	mu     sync.Mutex
	cached map[containerKey]cachedVersion
}

// cachedVersion is a cached answer. pending is set while the query runs. failed is the time of a failed query.
type cachedVersion struct {
	version.Programs
	pending bool
	failed  time.Time
}

// NewVersions returns an empty cache of a process that queries processes by get: version.Get.
func NewVersions(get func(context.Context, netip.AddrPort) (version.Programs, error)) *Versions {
	return &Versions{
		get: get, Wake: make(chan event.GenericEvent, 1), slots: make(chan struct{}, versionQuestions), cached: map[containerKey]cachedVersion{},
	}
}

// Note stores the versions of a pod's container that are already known.
func (v *Versions) Note(pod *corev1.Pod, programs version.Programs) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.cached[containerOf(pod)] = cachedVersion{Programs: programs}
}

// of returns the cached versions of a container and whether an answer is pending. It starts a query if there is none and
// the address is valid. Failed queries are retried after versionRetry.
func (v *Versions) of(key containerKey, address netip.AddrPort, now time.Time) (programs version.Programs, pending bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	known, isKnown := v.cached[key]
	if isKnown && (known.failed.IsZero() || now.Before(known.failed.Add(versionRetry))) {
		return known.Programs, known.pending
	}
	if !address.IsValid() {
		return programs, true
	}
	v.cached[key] = cachedVersion{pending: true}
	go v.query(key, address, now)
	return programs, true
}

// query runs one query and stores the result. It may outlive the pass.
func (v *Versions) query(key containerKey, address netip.AddrPort, now time.Time) {
	v.slots <- struct{}{}
	defer func() { <-v.slots }()
	ctx, cancel := context.WithTimeout(context.Background(), versionTimeout)
	defer cancel()
	answer := cachedVersion{}
	var err error
	if answer.Programs, err = v.get(ctx, address); err != nil {
		answer.failed = now
	}
	v.mu.Lock()
	if _, exists := v.cached[key]; exists {
		v.cached[key] = answer
	}
	v.mu.Unlock()
	select {
	case v.Wake <- event.GenericEvent{Object: &v1alpha1.OVNCluster{}}:
	default: // an event is already queued
	}
}

// Forget drops containers that no longer exist.
func (v *Versions) Forget(pods []corev1.Pod) {
	there := make(map[containerKey]bool, len(pods))
	for i := range pods {
		there[containerOf(&pods[i])] = true
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.cached, func(key containerKey, _ cachedVersion) bool { return !there[key] })
}

// versionsOf groups the pods of a component by their versions. The previous result stays while an answer is pending.
func (w *Writer) versionsOf(p Pass, name string) []v1alpha1.ComponentVersion {
	groups, port := map[version.Programs][]string{}, render.OperandOf(name).VersionPort
	for _, pod := range p.Report.PodsOf(name) {
		if !observed.Ready(pod) || observed.Silent(p.Report.Node(pod.Spec.NodeName)) {
			continue
		}
		var address netip.AddrPort
		if ip, err := netip.ParseAddr(pod.Status.PodIP); err == nil && port != 0 {
			address = netip.AddrPortFrom(ip, port)
		}
		programs, pending := w.Versions.of(containerOf(pod), address, p.Report.Now)
		switch {
		case pending:
			return componentVersions(p.Before.Status, name)
		case programs == (version.Programs{}):
			if address.IsValid() {
				p.Report.WakeAfter(versionRetry)
			}
		default:
			groups[programs] = append(groups[programs], pod.Spec.NodeName)
		}
	}
	all := make([]v1alpha1.ComponentVersion, 0, len(groups))
	for programs, nodes := range groups {
		slices.Sort(nodes)
		all = append(all, v1alpha1.ComponentVersion{
			Kiln: programs.Kiln, OVN: programs.OVN, OpenVSwitch: programs.OpenVSwitch, Pods: int32(len(nodes)), Nodes: nodes[:min(len(nodes), versionNodes)], //nolint:gosec // at most the number of nodes
		})
	}
	slices.SortFunc(all, func(a, b v1alpha1.ComponentVersion) int {
		return cmp.Or(cmp.Compare(a.Kiln, b.Kiln), cmp.Compare(a.OVN, b.OVN), cmp.Compare(a.OpenVSwitch, b.OpenVSwitch))
	})
	return all
}

func componentVersions(status v1alpha1.OVNClusterStatus, name string) []v1alpha1.ComponentVersion {
	at := slices.IndexFunc(status.Components, func(c v1alpha1.ComponentStatus) bool { return c.Name == name })
	if at < 0 {
		return nil
	}
	return status.Components[at].Versions
}

// summarize returns the running versions in one line: "Kiln v0.1.0, v0.2.0; OVN 25.03.0; Open vSwitch 3.5.0". More than one version means that an
// upgrade is not complete, so components with the operator's image do not count.
func summarize(rows []v1alpha1.ComponentStatus) string {
	var programs [3][]string
	for _, row := range rows {
		if render.OperandOf(row.Name).OperatorImage {
			continue
		}
		for _, v := range row.Versions {
			for i, one := range []string{v.Kiln, v.OVN, v.OpenVSwitch} {
				if one != "" {
					programs[i] = append(programs[i], one)
				}
			}
		}
	}
	var parts []string
	for i, title := range []string{"Kiln", "OVN", "Open vSwitch"} {
		slices.Sort(programs[i])
		if all := slices.Compact(programs[i]); len(all) > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", title, strings.Join(all, ", ")))
		}
	}
	return strings.Join(parts, "; ")
}
