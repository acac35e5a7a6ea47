// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func httpGet(port intstr.IntOrString) corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: port}}
}

func TestPortsOf(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	addresses := []netip.Addr{netip.MustParseAddr("10.0.0.7")}
	named := []corev1.ContainerPort{{Name: "web", ContainerPort: 80}}
	on := func(h corev1.ProbeHandler) corev1.Container {
		return corev1.Container{Ports: named, ReadinessProbe: &corev1.Probe{ProbeHandler: h}}
	}
	tcp := func(host string) corev1.ProbeHandler {
		return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(81), Host: host}}
	}
	hook := func(handler corev1.LifecycleHandler) corev1.Container {
		return corev1.Container{Lifecycle: &corev1.Lifecycle{PostStart: &handler}}
	}
	for name, c := range map[string]struct {
		containers, init []corev1.Container
		want             []uint16
	}{
		"a pod without probes has none":              {containers: []corev1.Container{{Ports: named}}},
		"a number":                                   {containers: []corev1.Container{on(httpGet(intstr.FromInt32(80)))}, want: []uint16{80}},
		"a name refers to a port of the container":   {containers: []corev1.Container{on(httpGet(intstr.FromString("web")))}, want: []uint16{80}},
		"a name of no port reaches nothing":          {containers: []corev1.Container{on(httpGet(intstr.FromString("other")))}},
		"a number as text":                           {containers: []corev1.Container{on(httpGet(intstr.FromString("82")))}, want: []uint16{82}},
		"TCP":                                        {containers: []corev1.Container{on(tcp(""))}, want: []uint16{81}},
		"a host that is the pod's address":           {containers: []corev1.Container{on(tcp("10.0.0.7"))}, want: []uint16{81}},
		"another host is reached its own way":        {containers: []corev1.Container{on(tcp("10.0.0.8"))}},
		"gRPC":                                       {containers: []corev1.Container{on(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 83}})}, want: []uint16{83}},
		"exec connects to nothing":                   {containers: []corev1.Container{on(corev1.ProbeHandler{Exec: &corev1.ExecAction{}})}},
		"a hook":                                     {containers: []corev1.Container{hook(corev1.LifecycleHandler{TCPSocket: tcp("").TCPSocket})}, want: []uint16{81}},
		"a sidecar":                                  {init: []corev1.Container{{RestartPolicy: &always, StartupProbe: &corev1.Probe{ProbeHandler: tcp("")}}}, want: []uint16{81}},
		"an init container that ends has no probes":  {init: []corev1.Container{on(tcp(""))}},
		"several containers, each port once, sorted": {containers: []corev1.Container{on(tcp("")), on(httpGet(intstr.FromString("web"))), on(tcp(""))}, want: []uint16{80, 81}},
		"a number that is no port":                   {containers: []corev1.Container{on(httpGet(intstr.FromInt32(65536)))}},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: c.containers, InitContainers: c.init}}
		if got := PortsOf(pod, addresses); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
