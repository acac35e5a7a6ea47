// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/manager"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
	"github.com/kiln-net/kiln/internal/version"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// controllerAddress is the listen address of the tested process's health; members listen on other addresses of the loopback network.
var controllerAddress = healthAt(1)

// The name in the certificate of the northbound database, and its port.
const (
	northboundName = "ovn-nb"
	northboundPort = 6641
)

// healthAt returns the address of a process's health, which is unique to this run.
func healthAt(host byte) string {
	return netip.AddrPortFrom(supervisortest.Loopback(host), 10660).String()
}

// TestControllerFromTheOVNClusterToAPod runs the whole process against a real API server and a real database behind TLS.
func TestControllerFromTheOVNClusterToAPod(t *testing.T) {
	c := useAPIServer(t)
	server := nbtest.Start(t)
	certificates := newCertificates(t)
	controller := startController(t, certificates, "controller", os.Getenv("KUBECONFIG"), controllerAddress, "--pod-cidrs=10.16.0.0/16,fd00:10:16::/64")
	ctx := t.Context()

	eventually.Until(t, func() string { return probe("/healthz", http.StatusOK) })
	eventually.Until(t, func() string { return probe("/readyz", http.StatusInternalServerError) })
	eventually.Until(t, func() string { return probe(version.Path, http.StatusOK) })

	cluster := &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OVNClusterName}}
	must.Succeed(t, c.Create(ctx, cluster))
	closeFirst := listen(t, certificates, 2, server)
	moveTo(t, c, cluster, 2)
	eventually.Until(t, func() string { return probe("/readyz", http.StatusOK) })

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	must.Succeed(t, c.Create(ctx, node))
	must.Succeed(t, c.Create(ctx, newPod("first")))
	eventually.Until(t, func() string { return allocated(c, "first", "10.16.0.2,fd00:10:16::2") })

	closeFirst()
	listen(t, certificates, 3, server)
	moveTo(t, c, cluster, 3)
	must.Succeed(t, c.Create(ctx, newPod("second")))
	eventually.Until(t, func() string { return allocated(c, "second", "10.16.0.3,fd00:10:16::3") })
	eventually.Until(t, func() string { // the second pod does not wait for the node's port
		ports := strings.Join(server.Names("Logical_Switch_Port"), " ")
		if ports != "first.default join-ovn-cluster node-n1 ovn-default-ovn-cluster second.default" {
			return "ports in the database: " + ports
		}
		return ""
	})

	must.Succeed(t, controller.Signal(syscall.SIGTERM))
	must.Succeed(t, controller.Wait())
	lease := &coordinationv1.Lease{}
	must.Succeed(t, c.Get(ctx, client.ObjectKey{Namespace: "default", Name: k8s.EventRecorder}, lease))
	if lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "" {
		t.Errorf("the process ended and still holds the Lease as %s", *lease.Spec.HolderIdentity)
	}
}

func TestControllerRefusesWrongFlags(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "default")
	t.Setenv("POD_NAME", "controller")
	for _, tt := range []struct {
		name     string
		given    addressFlags
		security kubeovnv1.PortSecurity
		policies v1alpha1.NetworkPolicies
		want     string
	}{
		{name: "no pod addresses", want: "--pod-cidrs is empty"},
		{name: "not a CIDR", given: addressFlags{pods: "ten"}, want: "--pod-cidrs"},
		{name: "two of one family", given: addressFlags{pods: "10.16.0.0/16,10.17.0.0/16"}, want: "--pod-cidrs"},
		{name: "join of another family", given: addressFlags{pods: "10.16.0.0/16", joins: "fd00::/64"}, want: "not of the same families"},
		{name: "unknown choice", security: "Maybe", want: `--port-security is "Maybe": use one of Enforced, Requested`},
		{name: "unknown choice of policies", policies: "Maybe", want: `--network-policies is "Maybe": use one of Enforced, Ignored`},
		{name: "two gateways of one family", given: addressFlags{pods: "10.16.0.0/16", gateways: "10.16.0.1,10.16.0.2"}, want: "--pod-gateways"},
		{name: "not a range", given: addressFlags{pods: "10.16.0.0/16", excluded: "10.16.0.1,10.16.0.9..10.16.0.2"}, want: "--exclude-ips"},
		{name: "limits that are not JSON", given: addressFlags{pods: "10.16.0.0/16", protection: "rejects=5"}, want: "--control-plane-protection"},
		{
			name: "unknown mode of limits", given: addressFlags{pods: "10.16.0.0/16", protection: `{"mode":"Off"}`},
			want: `--control-plane-protection: mode is "Off": use one of Limited, Unlimited`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := manager.Options{
				Membership: "Granted", ClusterAccess: "None", PortSecurity: cmp.Or(tt.security, kubeovnv1.PortSecurityEnforced),
				PodAccess: v1alpha1.PodAccessOVN, NetworkPolicies: cmp.Or(tt.policies, v1alpha1.NetworkPoliciesEnforced),
			}
			tt.given.services = "10.96.0.0/12"
			if err := parseController(&o, tt.given); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestControllerReadsLimitsOfPackets(t *testing.T) {
	for _, tt := range []struct {
		text string
		want v1alpha1.ControlPlaneProtection
	}{
		{"", v1alpha1.ControlPlaneProtection{}},
		{`{"mode":"Unlimited"}`, v1alpha1.ControlPlaneProtection{Mode: v1alpha1.ProtectionUnlimited}},
		{`{"mode":"Limited","packetsPerSecond":{"rejects":300},"later":1}`, v1alpha1.ControlPlaneProtection{
			Mode: v1alpha1.ProtectionLimited, PacketsPerSecond: v1alpha1.ControlPacketRates{Rejects: 300},
		}},
	} {
		var o manager.Options
		if err := parseProtection(&o, tt.text); err != nil || o.Protection != tt.want {
			t.Errorf("%s: %+v, %v", tt.text, o.Protection, err)
		}
	}
}

// shared is the API server of the tests, from the first one that needs it, and its kubeconfig.
var shared struct {
	*apiserver.Shared
	kubeconfig []byte
}

// useAPIServer returns a client of an API server without objects of other tests, and sets KUBECONFIG.
func useAPIServer(t testing.TB) client.Client {
	t.Helper()
	if shared.Shared == nil {
		env, err := apiserver.New()
		must.Succeed(t, err)
		_, err = env.Start()
		must.Succeed(t, err)
		if shared.kubeconfig, _, err = env.TokenConfig(t.Context()); err == nil {
			shared.Shared, err = env.Share(t.Context())
		}
		if err != nil {
			t.Fatal(errors.Join(err, env.Stop()))
		}
	}
	t.Cleanup(func() { // after the end of the controllers
		if err := shared.Clear(context.Background()); err != nil {
			t.Error(errors.Join(err, stopShared()))
		}
	})
	return use(t, shared.Server, shared.kubeconfig)
}

// stopShared stops the shared API server, if it runs.
func stopShared() error {
	if shared.Shared == nil {
		return nil
	}
	defer func() { shared.Shared = nil }()
	return shared.Stop()
}

// startAPIServer starts an API server with kinds, as apiserver.New, for one test. It returns a client, and sets KUBECONFIG.
func startAPIServer(t testing.TB, kinds ...string) client.Client {
	t.Helper()
	env := apiserver.StartFor(t, kinds...)
	kubeconfig, _, err := env.TokenConfig(t.Context())
	must.Succeed(t, err)
	return use(t, env, kubeconfig)
}

func use(t testing.TB, env *apiserver.Server, content []byte) client.Client {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must.Succeed(t, os.WriteFile(kubeconfig, content, 0o600))
	t.Setenv("KUBECONFIG", kubeconfig)
	scheme := runtime.NewScheme()
	must.Succeed(t, clientgoscheme.AddToScheme(scheme))
	must.Succeed(t, kubeovnv1.AddToScheme(scheme))
	must.Succeed(t, v1alpha1.AddToScheme(scheme))
	c, err := client.New(env.Config, client.Options{Scheme: scheme})
	must.Succeed(t, err)
	return c
}

func newCertificates(t testing.TB) *nbtest.TLS {
	t.Helper()
	return nbtest.NewTLS(t, northboundName, "kube-ovn-controller")
}

// listen serves the database with TLS at an address until the test ends, or until the function it returns is called.
func listen(t testing.TB, certificates *nbtest.TLS, host byte, server *nbtest.Server) (stop func()) {
	t.Helper()
	return certificates.Listen(t, netip.AddrPortFrom(supervisortest.Loopback(host), northboundPort).String(), server)
}

// newCluster creates the OVNCluster, with one member of the northbound database on a loopback address.
func newCluster(t testing.TB, c client.Client, host byte) {
	t.Helper()
	cluster := &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OVNClusterName}}
	must.Succeed(t, c.Create(t.Context(), cluster))
	moveTo(t, c, cluster, host)
}

// moveTo makes the OVNCluster name one member of the northbound database.
func moveTo(t testing.TB, c client.Client, cluster *v1alpha1.OVNCluster, host byte) {
	t.Helper()
	cluster.Status.Northbound.Members = []v1alpha1.DatabaseMember{{Node: "n1", Address: supervisortest.Loopback(host).String()}}
	must.Succeed(t, c.Status().Update(t.Context(), cluster))
}

func newPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

func allocated(c client.Client, name, addresses string) string {
	pod := &corev1.Pod{}
	if err := c.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: name}, pod); err != nil {
		return err.Error()
	}
	if got := pod.Annotations[kubeovnv1.AnnotationIPAddress.Key()]; got != addresses {
		return fmt.Sprintf("pod %s has address %q, want %s", name, got, addresses)
	}
	return ""
}

func probe(path string, want int) string {
	response, err := http.Get("http://" + controllerAddress + path)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	if response.StatusCode != want {
		return fmt.Sprintf("%s is %s, want %d", path, response.Status, want)
	}
	return ""
}
