// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services_test

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/agent/services"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/daemontest"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// kubeProxy returns the command of the real kube-proxy in its nftables mode.
func (w *world) kubeProxy(args ...string) *exec.Cmd {
	args = append([]string{"--kubeconfig=" + kubeconfig, "--hostname-override=" + nodeName, "--proxy-mode=nftables",
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
		"--metrics-bind-address=127.0.0.1:10249", "--healthz-bind-address=127.0.0.1:10256"}, args...)
	cmd := exec.Command(filepath.Join(programs, "kube-proxy"), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// heldConnection opens a connection through a Service to a server that echoes its input. The returned function checks the connection.
func (w *world) heldConnection(p *pod) func() {
	w.Helper()
	must.Succeed(w, p.ns.Do(func(ns.NetNS) error {
		listener, err := net.Listen("tcp", ":8081")
		if err != nil {
			return err
		}
		w.Cleanup(func() { _ = listener.Close() })
		go func() {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			buffer := make([]byte, 100)
			for n, err := c.Read(buffer); err == nil; n, err = c.Read(buffer) {
				_, _ = c.Write(buffer[:n])
			}
		}()
		return nil
	}))
	s := w.service("held", func(s *corev1.ServiceSpec) { s.Ports = []corev1.ServicePort{{Name: "held", Port: 80}} })
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "held", Labels: map[string]string{discoveryv1.LabelServiceName: "held"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("held"), Port: new(int32(8081))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{p.ips[0].String()}}},
	}
	must.Succeed(w, w.client.Create(w.Context(), slice))
	w.Cleanup(func() { w.delete(slice) })
	var connection net.Conn
	w.eventually(func() string {
		c, err := net.Dial("tcp", clusterIP(s).String())
		if err != nil {
			return err.Error()
		}
		connection = c
		return ""
	})
	w.Cleanup(func() { _ = connection.Close() })
	return func() {
		w.Helper()
		_ = connection.SetDeadline(time.Time{}) // removes the previous deadline
		if _, err := connection.Write([]byte("still")); err != nil {
			w.Fatalf("the connection was deleted: %v", err)
		}
		if text, err := talk(connection, "tcp", patience); err != nil || text != "still" {
			w.Fatalf("the connection answers %q, %v", text, err)
		}
	}
}

// kubeProxyCondition waits for the node's condition; an empty status means no condition.
func (w *world) kubeProxyCondition(status corev1.ConditionStatus, text string) {
	w.Helper()
	w.eventually(func() string {
		node := &corev1.Node{}
		must.Succeed(w, w.client.Get(w.Context(), client.ObjectKey{Name: nodeName}, node))
		have := corev1.NodeCondition{}
		for _, c := range node.Status.Conditions {
			if c.Type == v1alpha1.NodeConditionKubeProxy {
				have = c
			}
		}
		if have.Status != status || !strings.Contains(have.Message, text) {
			return fmt.Sprintf("the condition is %q, %q, want %q with %q", have.Status, have.Message, status, text)
		}
		return ""
	})
}

// A cluster migrates from kube-proxy to Kiln: Services stay reachable, a connection continues, and the node's condition reports while
// both are active.
func TestTakingOverFromKubeProxy(t *testing.T) {
	w := emptyWorld(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeIPs[0].Addr().String()}},
	}}
	must.Succeed(t, w.client.Create(t.Context(), node))
	t.Cleanup(func() { w.delete(node) })
	a, b := w.pod("a", 2), w.pod("b", 3)
	s := w.service("taken", nil)
	w.serves("taken", here(a), elsewhere(b))
	served := func() {
		t.Helper()
		w.expect(nil, "tcp", clusterIP(s), nodeIPs[0].Addr(), "a", "b")
	}

	log := filepath.Join(t.TempDir(), "kube-proxy.log")
	proxy := daemontest.Start(t, "kube-proxy", log, w.kubeProxy())
	served()
	connected := w.heldConnection(a)
	connected()

	var err error
	w.kubeProxyCheck, err = services.NewKubeProxyCheck(w.client, nodeName)
	must.Succeed(t, err)
	w.start()
	w.kubeProxyCondition(corev1.ConditionTrue, "table ip kube-proxy")
	served()
	proxy.Kill()
	served()
	if out, err := w.kubeProxy("--cleanup").CombinedOutput(); err != nil {
		t.Fatalf("kube-proxy --cleanup: %v\n%s", err, out)
	}
	must.Succeed(t, w.kubeProxyCheck.Update(t.Context()))
	w.kubeProxyCondition(corev1.ConditionFalse, "Kiln alone")
	served()
	connected()

	nodetest.NFT(t, "add table ip nat; add chain ip nat KUBE-SERVICES")
	t.Cleanup(func() { nodetest.NFT(t, "delete table ip nat") })
	must.Succeed(t, w.kubeProxyCheck.Update(t.Context()))
	w.kubeProxyCondition(corev1.ConditionTrue, "table ip nat KUBE-SERVICES") // left by its iptables mode

	// Migration back: the agent leaves Services to kube-proxy and removes the condition.
	w.stop()
	nft, err := knftables.New(knftables.InetFamily, services.Table)
	must.Succeed(t, err)
	must.Succeed(t, services.Remove(t.Context(), nft))
	must.Succeed(t, w.kubeProxyCheck.RemoveCondition(t.Context()))
	w.kubeProxyCondition("", "")
	again := daemontest.Start(t, "kube-proxy", log, w.kubeProxy())
	t.Cleanup(func() {
		again.Kill()
		_ = w.kubeProxy("--cleanup").Run()
	})
	served()
	connected()
}
