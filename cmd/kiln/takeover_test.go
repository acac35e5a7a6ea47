// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/testing/daemontest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// long are flags with which no leader loses the Lease on a busy machine, and another process notices soon that the Lease has expired.
var long = []string{"--leader-elect-lease-duration=24h", "--leader-elect-renew-deadline=23h", "--leader-elect-retry-period=500ms"}

// envController makes the test's program run `kiln controller`: a process that can be killed and started several times.
const envController = "KILN_TEST_CONTROLLER"

func TestMain(m *testing.M) {
	if os.Getenv(envMain) != "" {
		main()
		return
	}
	if os.Getenv(envController) == "" {
		code := eventually.Main(m)
		if err := stopShared(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the API server:", err)
			code = 1
		}
		os.Exit(code)
	}
	k8s.OnlyEvents()
	cmd := newControllerCommand()
	cmd.SetArgs(os.Args[1:])
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := cmd.ExecuteContext(ctx)
	stop()
	if err != nil {
		os.Exit(1)
	}
}

// TestAWarmStandbyTakesOver kills the leader. The standby has read all collections by then, so it lists nothing between taking the Lease
// and handling the first new pod.
func TestAWarmStandbyTakesOver(t *testing.T) {
	c := useAPIServer(t)
	certificates := newCertificates(t)
	listen(t, certificates, 4, nbtest.Start(t))
	newCluster(t, c, 4)
	direct := os.Getenv("KUBECONFIG")
	seen, proxied := countRequests(t, direct)

	leader := startController(t, certificates, "leader", direct, healthAt(11), long...)
	must.Succeed(t, c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
	must.Succeed(t, c.Create(t.Context(), newPod("first")))
	eventually.Until(t, func() string { return allocated(c, "first", "10.16.0.2") })
	led := holder(t, c)

	standby := startController(t, certificates, "standby", proxied, healthAt(12), long...)
	read := []string{
		"pods", "nodes", "namespaces", "services", "endpointslices", "statefulsets", "networkpolicies", "customresourcedefinitions", "servicecidrs",
		"customresourcedefinitions metadata.name=virtualmachines.kubevirt.io", "ovnclusters metadata.name=default",
	}
	for _, k := range kubeovnv1.ImplementedKinds {
		read = append(read, k.Resource)
	}
	for _, kind := range read {
		eventually.Until(t, func() string { return seen.whether(kind, standby) })
	}
	if now := holder(t, c); now != led {
		t.Fatalf("the Lease went from %s to %s while its holder was well", led, now)
	}
	before := seen.lists()
	leader.Kill()
	runOut(t, c)
	must.Succeed(t, c.Create(t.Context(), newPod("second")))
	eventually.Until(t, func() string { return allocated(c, "second", "10.16.0.3") })
	if now := holder(t, c); now == led {
		t.Errorf("%s still holds the Lease, and it was killed", led)
	}
	if after := seen.lists(); len(after) != len(before) {
		t.Errorf("the standby had to read %v when it took over", after[len(before):])
	}
}

// TestALeaderThatStartsAgainKeepsItsLease kills the leader of a Lease that does not expire during the test. The next process in the same
// pod leads at once with its own term: the database refuses further writes of the previous process.
func TestALeaderThatStartsAgainKeepsItsLease(t *testing.T) {
	c := useAPIServer(t)
	certificates := newCertificates(t)
	server := nbtest.Start(t)
	listen(t, certificates, 5, server)
	newCluster(t, c, 5)

	leader := startController(t, certificates, "leader", os.Getenv("KUBECONFIG"), healthAt(13), long...)
	must.Succeed(t, c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
	must.Succeed(t, c.Create(t.Context(), newPod("first")))
	eventually.Until(t, func() string { return allocated(c, "first", "10.16.0.2") })
	startController(t, certificates, "standby", os.Getenv("KUBECONFIG"), healthAt(14), long...)

	leader.Kill()
	must.Succeed(t, c.Create(t.Context(), newPod("second")))
	startController(t, certificates, "leader", os.Getenv("KUBECONFIG"), healthAt(15), long...)
	eventually.Until(t, func() string { return allocated(c, "second", "10.16.0.3") })
	if now := holder(t, c); now != "leader" {
		t.Errorf("the Lease is held by %q", now)
	}
	if rows := fmt.Sprint(server.Rows("NB_Global")); !strings.Contains(rows, "kiln-leader-term:2") {
		t.Errorf("the leader's term is not the second: %s", rows)
	}
}

// TestADeposedLeaderGivesUpItsLease removes the leader's term from the database, as the restore of a backup does. Without its term the
// leader cannot write, and its Lease would keep other processes from leading.
func TestADeposedLeaderGivesUpItsLease(t *testing.T) {
	c := useAPIServer(t)
	certificates := newCertificates(t)
	server := nbtest.Start(t)
	listen(t, certificates, 6, server)
	newCluster(t, c, 6)
	leader := startController(t, certificates, "leader", os.Getenv("KUBECONFIG"), healthAt(16), long...)
	must.Succeed(t, c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
	must.Succeed(t, c.Create(t.Context(), newPod("first")))
	eventually.Until(t, func() string { return allocated(c, "first", "10.16.0.2") })

	server.Transact(nbtest.Op{"op": "update", "table": "NB_Global", "where": []any{}, "row": map[string]any{"external_ids": []any{"map", []any{}}}})
	if err := leader.Wait(); err == nil {
		t.Error("the deposed leader ended without an error")
	}
	startController(t, certificates, "standby", os.Getenv("KUBECONFIG"), healthAt(17), long...)
	must.Succeed(t, c.Create(t.Context(), newPod("second")))
	eventually.Until(t, func() string { return allocated(c, "second", "10.16.0.3") })
}

// startController runs a controller in a child process, which ends with the test.
func startController(t *testing.T, c *nbtest.TLS, pod, kubeconfig, address string, flags ...string) *daemontest.Daemon {
	t.Helper()
	program, err := os.Executable()
	must.Succeed(t, err)
	cmd := exec.Command(program, append([]string{"--tls-dir=" + c.Dir, "--address=" + address}, flags...)...)
	cmd.Env = append(os.Environ(), envController+"=1", "POD_NAMESPACE=default", "POD_NAME="+pod, "KUBECONFIG="+kubeconfig, "GOGC=") // it sets its own
	key, err := os.ReadFile(filepath.Join(c.Dir, "tls.key"))
	must.Succeed(t, err)
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must.Succeed(t, err)
	log := filepath.Join(t.TempDir(), "controller.log")
	return daemontest.Start(t, "the controller at "+address, log, cmd).Hides(key).HidesToken(config.BearerToken)
}

// holder returns the holder of the controllers' Lease.
func holder(t *testing.T, c client.Client) string {
	t.Helper()
	lease := &coordinationv1.Lease{}
	must.Succeed(t, c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: k8s.EventRecorder}, lease))
	return *lease.Spec.HolderIdentity
}

// runOut expires the Lease of a holder that was killed.
func runOut(t *testing.T, c client.Client) {
	t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: k8s.EventRecorder}}
	must.Succeed(t, c.Patch(t.Context(), lease, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"leaseDurationSeconds":1}}`))))
}

// requests records the requests through a proxy that read whole collections.
type requests struct {
	mu    sync.Mutex
	asked []string        // collections, in order of the requests
	read  map[string]bool // collections whose whole content was passed on
}

// countRequests starts a proxy of the API server, and returns its kubeconfig.
func countRequests(t *testing.T, kubeconfig string) (*requests, string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	must.Succeed(t, err)
	to, err := url.Parse(config.Host)
	must.Succeed(t, err)
	transport, err := rest.TransportFor(config)
	must.Succeed(t, err)
	seen := &requests{read: map[string]bool{}}
	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			seen.add(r.In)
			r.SetURL(to)
			r.Out.Header.Set("Accept-Encoding", "identity") // so that passed can parse it
		},
		ModifyResponse: func(r *http.Response) error {
			if collectionOf(r.Request) != "" && r.StatusCode == http.StatusOK {
				r.Body = &passed{ReadCloser: r.Body, what: collectionOf(r.Request), to: seen}
			}
			return nil
		},
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.CloseClientConnections)
	file := filepath.Join(t.TempDir(), "proxied")
	must.Succeed(t, clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "c",
		Contexts:       map[string]*clientcmdapi.Context{"c": {Cluster: "c"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: server.URL}},
	}, file))
	return seen, file
}

// collectionOf returns the path of the collection that a request reads as a whole, and the selected fields. Such a request is a list, or
// a watch that begins with the existing objects.
func collectionOf(r *http.Request) string {
	query := r.URL.Query()
	whole := query.Get("watch") == "" || query.Get("sendInitialEvents") == "true"
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if r.Method != http.MethodGet || !whole || slices.Contains(parts, "leases") {
		return ""
	}
	return strings.TrimSpace(r.URL.Path + " " + query.Get("fieldSelector"))
}

func (s *requests) add(r *http.Request) {
	what := collectionOf(r)
	if what == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, what)
}

// passed reads a response with a whole collection. The collection ends with the response or, in a watch, with a bookmark that marks its
// end.
type passed struct {
	io.ReadCloser
	what string
	to   *requests
	last []byte // the end of the previous read, in which the mark may begin
}

func (p *passed) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b)
	const mark = metav1.InitialEventsAnnotationKey
	p.last = append(p.last, b[:n]...)
	if errors.Is(err, io.EOF) || bytes.Contains(p.last, []byte(mark)) {
		p.to.mu.Lock()
		defer p.to.mu.Unlock()
		p.to.read[p.what] = true
	}
	p.last = slices.Clone(p.last[max(0, len(p.last)-len(mark)):])
	return n, err
}

func (s *requests) lists() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// whether returns "" if a collection was read, and otherwise an error message.
func (s *requests) whether(kind string, by *daemontest.Daemon) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for what := range s.read {
		if strings.HasSuffix(what, "/"+kind) {
			return ""
		}
	}
	return fmt.Sprintf("process %d has not read %s: it asked for %v", by.PID(), kind, s.asked)
}
