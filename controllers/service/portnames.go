// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/k8s"
)

// ReasonPortNameUnknown is the event of a Service with a named targetPort that none of its pods has. Kubernetes makes no endpoints of that port.
const ReasonPortNameUnknown = "PortNameUnknown"

const (
	// unnamedDelay is the default of UnnamedDelay: EndpointSlices follow a Service later, and pods follow a change of their Deployment.
	unnamedDelay = time.Minute
	// maxUnnamed is the number of ports in a message.
	maxUnnamed = 5
)

// unnamedPorts returns a message about the ports of a Service whose targetPort is a name that none of its pods has, "" if there are none, or if the
// Service has no pods.
func unnamedPorts(s *corev1.Service, of []*discoveryv1.EndpointSlice) string {
	if len(s.Spec.Selector) == 0 || !slices.ContainsFunc(s.Spec.Ports, named) {
		return ""
	}
	found, pods := map[string]bool{}, false
	for _, slice := range of {
		if len(slice.Endpoints) == 0 {
			continue
		}
		pods = true
		for _, p := range slice.Ports {
			if p.Name != nil { // the API server sets it
				found[*p.Name] = true
			}
		}
	}
	var ports, names []string
	for _, p := range s.Spec.Ports {
		if !pods || !named(p) || found[p.Name] {
			continue
		}
		ports = append(ports, fmt.Sprint(p.Port))
		if !slices.Contains(names, p.TargetPort.StrVal) {
			names = append(names, p.TargetPort.StrVal)
		}
	}
	if len(ports) == 0 {
		return ""
	}
	return fmt.Sprintf("no pod of the Service has a port of the name %s: connections to port %s are refused: write targetPort as in the pods, or a number",
		k8s.Some(names, maxUnnamed), k8s.Some(ports, maxUnnamed))
}

// named reports whether the targetPort of a Service is a name.
func named(p corev1.ServicePort) bool { return p.TargetPort.Type == intstr.String }

// reportUnnamed reports an event on a Service with ports that none of its pods has, after a delay.
func (r *Reconciler) reportUnnamed(s *corev1.Service, of []*discoveryv1.EndpointSlice) {
	key, message := client.ObjectKeyFromObject(s), unnamedPorts(s, of)
	if r.unnamed.due(key, message, cmp.Or(r.UnnamedDelay, unnamedDelay), func() { r.requests.AddKey(key) }) {
		k8s.Warn(r.Recorder, s, ReasonPortNameUnknown, message)
	}
}

// unnamed holds the messages about Services with ports that none of their pods has.
type unnamed struct {
	mu       sync.Mutex
	services map[types.NamespacedName]unnamedService
}

type unnamedService struct {
	message  string
	timer    *time.Timer
	since    time.Time
	reported bool
}

// due returns true, once, when the message about a Service has been the same for the delay. It calls again after the delay.
func (u *unnamed) due(key types.NamespacedName, message string, delay time.Duration, again func()) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	s, listed := u.services[key]
	if listed && s.message != message {
		s.timer.Stop()
		delete(u.services, key)
	}
	switch {
	case message == "":
		return false
	case s.message != message:
		if u.services == nil {
			u.services = map[types.NamespacedName]unnamedService{}
		}
		u.services[key] = unnamedService{message: message, since: time.Now(), timer: time.AfterFunc(delay, again)}
		return false
	case s.reported || time.Since(s.since) < delay:
		return false
	}
	s.reported = true
	u.services[key] = s
	return true
}

// forget drops the message about a Service that no longer exists.
func (u *unnamed) forget(key types.NamespacedName) { u.due(key, "", 0, nil) }
