// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/sandbox"
)

// Reasons of events about the node's mirror.
const (
	reasonMirrorDisabled = "MirrorDisabled" // on a pod
	reasonMirrorFailed   = "MirrorFailed"   // on the node
)

var mirrorProblems = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "kiln_mirror_problems",
	Help: "Reasons for which packets are not copied to mirror0 or to collectors of TrafficMirrors. An event on the node has their texts.",
}, []string{"node_name"})

func init() { metrics.Registry.MustRegister(mirrorProblems) }

// MirrorSetting is the OVNCluster's setting of the node's mirror. The zero value is ready. Until Set is called, for example while the API server is
// unavailable, the mirror stays as it is.
type MirrorSetting struct {
	mode     atomic.Pointer[v1alpha1.MirrorMode]
	requests k8s.RequestSource
}

// Set applies a mode; the empty mode is the default. It does not block.
func (m *MirrorSetting) Set(mode v1alpha1.MirrorMode) {
	if mode == "" {
		mode = v1alpha1.MirrorSelected
	}
	if before := m.mode.Swap(&mode); before == nil || *before != mode {
		m.requests.Add(ovs.MirrorName)
	}
}

// disabled reports whether nodes have no mirror.
func (m *MirrorSetting) disabled() bool {
	mode := m.mode.Load()
	return mode != nil && *mode == v1alpha1.MirrorNone
}

// setupMirror adds the controller of the node's mirror. Which pods it selects is recorded on their ports (follow).
func (s *Server) setupMirror(mgr ctrl.Manager) error {
	s.Bridge.Subscribe(func(name string) {
		if ovs.ConcernsMirrors(name) {
			s.Mirror.requests.Add(ovs.MirrorName)
		}
	})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.Node, UID: types.UID(s.Node)}} // the UID with which kubelets report events
	var reported string
	err := ctrl.NewControllerManagedBy(mgr).
		Named("mirror").
		WatchesRawSource(&s.Mirror.requests).
		WithOptions(k8s.Workers(1)).
		Complete(reconcile.Func(func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
			pause, err := s.ensureMirror(ctx)
			var problems []string
			if err != nil {
				problems = append(problems, fmt.Sprintf("packets of pods are not copied to %s: %v", ovs.MirrorInterface, err))
			}
			more, _ := s.Bridge.MirrorProblems(ctx) // without the bridge there are none, and it causes an event when it appears
			problems = append(problems, more...)
			mirrorProblems.WithLabelValues(s.Node).Set(float64(len(problems)))
			problem := strings.Join(problems, "; ")
			if problem != reported && problem != "" {
				k8s.Warn(s.Recorder, node, reasonMirrorFailed, problem)
			}
			reported = problem
			return ctrl.Result{RequeueAfter: pause}, err
		}))
	if err != nil {
		return fmt.Errorf("add the controller of the mirror: %w", err)
	}
	return nil
}

// ensureMirror applies the mode. It returns a duration if it has to be called again: before a new node is ready, nftables does not keep the copies
// from the node's network stack (package host).
func (s *Server) ensureMirror(ctx context.Context) (again time.Duration, err error) {
	mode := s.Mirror.mode.Load()
	if mode == nil || s.Bridge.Ready(ctx) != nil { // the bridge causes an event when it appears
		return 0, nil
	}
	if *mode == v1alpha1.MirrorNone {
		if err := s.Bridge.RemoveMirror(ctx); err != nil {
			return 0, err
		}
		return 0, s.reportMirrored(ctx)
	}
	if err := s.Bridge.EnsureMirror(ctx, *mode == v1alpha1.MirrorAll); err != nil {
		return 0, err
	}
	if s.Ready(ctx) != nil {
		return time.Second, nil
	}
	return 0, sandbox.ListenOnly(ovs.MirrorInterface) // its row changes when ovs-vswitchd has made the device
}

// mirrorRequests returns the mirror annotations of all networks of a pod.
func mirrorRequests(annotations map[string]string) map[string]string {
	var out map[string]string
	for key, value := range annotations {
		if _, name, _ := strings.Cut(key, "/"); name == string(v1.AnnotationMirror) {
			if out == nil {
				out = map[string]string{}
			}
			out[key] = value
		}
	}
	return out
}

// remirrors reports whether an update of a pod changes whether its packets are copied.
func remirrors(before, after map[string]string) bool {
	return !maps.Equal(mirrorRequests(before), mirrorRequests(after))
}

// mirrored reports whether the network of a pod requests copies of its packets.
func mirrored(pod *metav1.PartialObjectMetadata, provider string) bool {
	return v1.IsTrueOf(pod.Annotations, v1.AnnotationMirror, provider)
}

func (s *Server) mirrorInTurn(ctx context.Context, a ovs.Attachment, pod *metav1.PartialObjectMetadata, provider string) error {
	if a.Mirrored == mirrored(pod, provider) {
		return s.mirror(ctx, a, pod, provider)
	}
	return s.inTurn(ctx, a, func(a ovs.Attachment) error { return s.mirror(ctx, a, pod, provider) })
}

// mirror adds the port of a pod to the node's mirror, or removes it, as the pod's annotation says.
func (s *Server) mirror(ctx context.Context, a ovs.Attachment, pod *metav1.PartialObjectMetadata, provider string) error {
	if !isPod(pod, types.UID(a.PodUID)) {
		return nil
	}
	on := mirrored(pod, provider)
	if a.Mirrored != on {
		if err := s.Bridge.SetMirrored(ctx, a.Name, on); err != nil {
			return err
		}
		a.Mirrored = on
	}
	s.reportUnmirrored(a, pod)
	return nil
}

// reportMirrored reports the pods that request copies while nodes have no mirror.
func (s *Server) reportMirrored(ctx context.Context) error {
	attachments, err := s.Bridge.Attachments(ctx)
	if err != nil {
		return err
	}
	for _, a := range attachments {
		if !a.Mirrored {
			continue
		}
		pod, err := s.Pods.get(ctx, podOf(a))
		if err != nil {
			return err
		}
		if pod != nil && isPod(pod, types.UID(a.PodUID)) {
			s.reportUnmirrored(a, pod)
		}
	}
	return nil
}

func (s *Server) reportUnmirrored(a ovs.Attachment, pod *metav1.PartialObjectMetadata) {
	if a.Mirrored && s.Mirror.disabled() {
		k8s.Warn(s.Recorder, pod, reasonMirrorDisabled, fmt.Sprintf(
			"annotation %s has no effect, because spec.agent.mirror of the OVNCluster is None: set it to Selected, or remove the annotation", v1.AnnotationMirror.Key()))
	}
}
