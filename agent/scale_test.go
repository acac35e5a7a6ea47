// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/internal/serving/scrape/scrapetest"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// TestSeriesDoNotGrowWithPods compares the agent's metrics with many pods on the node and endpoints in the cluster, and with a tenth of them.
func TestSeriesDoNotGrowWithPods(t *testing.T) {
	n := agenttest.NewNode(t)
	n.Options.ServeServices = true
	n.Register()
	n.Allocate()
	n.StartAgent()
	n.WaitReady()
	n.VSCtl("set-fail-mode", "br-int", "secure") // as ovn-controller sets it
	pods, endpoints := scrapetest.Size(10, 250), scrapetest.Size(100, 10_000)
	services := createServices(t, n, endpoints)
	containers := make([]*agenttest.Container, pods)
	for i := range containers {
		containers[i] = n.Sandbox(n.Pod(fmt.Sprintf("scale-%d", i), 1000+i), agenttest.NewID())
		containers[i].MustAdd()
	}
	remove := func(c *agenttest.Container) {
		c.MustDel()
		must.Succeed(t, n.API.Delete(t.Context(), c.Pod, client.GracePeriodSeconds(0)))
	}
	removed := n.Sandbox(n.Pod("scale", 999), agenttest.NewID()) // DEL has series of its own
	removed.MustAdd()
	remove(removed)
	scrape := func() string {
		answer, err := http.Get("http://" + agenttest.HealthAddress + "/metrics")
		must.Succeed(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		must.Succeed(t, err)
		return string(text)
	}
	many := scrapetest.Series(scrape())
	memory := regexp.MustCompile(`(?m)^process_resident_memory_bytes .*`).FindString(scrape())
	scrapetest.Report(t, fmt.Sprintf("kube-ovn-cni, %d pods, %d endpoints (%s)", pods, endpoints, memory), scrape)

	for _, c := range containers[pods/scrapetest.Growth:] {
		remove(c)
	}
	for _, o := range services[len(services)/scrapetest.Growth:] {
		must.Succeed(t, n.API.Delete(t.Context(), o))
	}
	few := 0
	n.Eventually("no pod and no endpoint has a series", func() bool {
		few = scrapetest.Series(scrape())
		return few >= many
	})
	t.Logf("%d series with many, %d with few", many, few)
}

const endpointsPerService = 100

// createServices creates Services with endpoints on other nodes, and returns all objects.
func createServices(t *testing.T, n *agenttest.Node, endpoints int) []client.Object {
	t.Helper()
	var all []client.Object
	protocol, port, portName := corev1.ProtocolTCP, int32(80), "web"
	for i := range endpoints / endpointsPerService {
		name := fmt.Sprintf("scale-%d", i)
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{Name: portName, Port: port}},
		}}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &portName, Protocol: &protocol, Port: &port}},
		}
		for j := range endpointsPerService {
			number := i*endpointsPerService + j
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.17.%d.%d", number/256, number%256)}})
		}
		for _, o := range []client.Object{service, slice} {
			must.Succeed(t, n.API.Create(t.Context(), o))
			all = append(all, o)
			t.Cleanup(func() { _ = n.API.Delete(context.Background(), o) }) // some are deleted
		}
	}
	return all
}
