// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/eventually"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/panics"
	"github.com/kiln-net/kiln/internal/prepared/apiserver"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
	"github.com/kiln-net/kiln/internal/tlsdir"
	"github.com/kiln-net/kiln/internal/version"
)

const testNamespace = "kube-system"

// world is a real API server. The operator runs against it as its own ServiceAccount, so that the tests cover the rights
// in its manifests. No workloads run: the tests act as kubelets and controllers.
type world struct {
	admin   client.Client
	config  *rest.Config
	operate *Reconciler
	members *fakeMembers
	// programs are the versions that pods report.
	programs *fakeVersions
	// repeat enables the operator's retries again.
	repeat func()
	// log is the operator's log.
	log *os.File
	// ahead is the offset of the operator's clock from the real time, in nanoseconds.
	ahead atomic.Int64
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }

var theWorld world

func TestMain(m *testing.M) { os.Exit(runSuite(m)) }

func runSuite(m *testing.M) int {
	theWorld.log = logFile()
	log.SetLogger(zap.New(zap.WriteTo(theWorld.log), zap.UseDevMode(true)))
	env, err := apiserver.New()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// Some distributions enable this plugin. It requires the right to update the finalizers of an object's owner.
	env.ControlPlane.GetAPIServer().Configure().Append("enable-admission-plugins", "OwnerReferencesPermissionEnforcement")
	config, err := env.Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, "start an API server:", err)
		return 1
	}
	theWorld.repeat = k8s.OnlyEvents()
	panics.Record()
	ctx, cancel := context.WithCancel(context.Background())
	defer func() {
		cancel()
		if err := env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the API server:", err)
		}
	}()
	if err := theWorld.start(ctx, config); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return panics.Code(eventually.Main(m))
}

func logFile() *os.File {
	f, err := os.CreateTemp("", "kiln-operator-test-*.log")
	if err != nil {
		return os.Stderr
	}
	_ = os.Remove(f.Name())
	if name := os.Getenv("KILN_TEST_LOG"); name != "" {
		if f, err = os.Create(name); err != nil {
			return os.Stderr
		}
	}
	return f
}

func (w *world) start(ctx context.Context, config *rest.Config) error {
	scheme, err := NewScheme()
	if err != nil {
		return err
	}
	w.programs = &fakeVersions{programs: map[uint16]version.Programs{}}
	w.config, w.members = config, &fakeMembers{now: w.now, servers: map[uint16]*httptest.Server{}}
	if w.admin, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	manifests, err := filepath.Glob(filepath.Join("..", "..", "config", "rbac", "*.yaml"))
	if err != nil {
		return err
	}
	for _, path := range manifests {
		if filepath.Base(path) == "kustomization.yaml" {
			continue
		}
		if err := w.createFile(ctx, path); err != nil {
			return fmt.Errorf("create %s: %w", path, err)
		}
	}
	operator := rest.CopyConfig(config)
	operator.QPS = -1
	operator.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + testNamespace + ":kiln-operator",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + testNamespace, "system:authenticated"},
	}
	// The operator is the only candidate for the Lease, and on a busy machine it may renew late.
	renewDeadline := 4 * time.Minute
	lock, err := k8s.Identity{Namespace: testNamespace, Pod: "operator-0"}.Lock(operator, "kiln-operator", renewDeadline)
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(operator, ctrl.Options{
		Scheme: scheme, Cache: CacheOptions(testNamespace), Metrics: metricsserver.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionResourceLockInterface: lock, LeaseDuration: new(5 * time.Minute), RenewDeadline: &renewDeadline,
	})
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	w.operate = &Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("kiln-operator"),
		Namespace: testNamespace, Image: "kiln.local/kiln:test", Admin: w.members.client, Versions: w.programs.get, Now: w.now,
	}
	if err := w.operate.SetupWithManager(mgr); err != nil {
		return err
	}
	chassis := &certs.ChassisReconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Namespace: testNamespace, Now: time.Now}
	if err := chassis.SetupWithManager(mgr); err != nil {
		return err
	}
	go func() {
		if err := mgr.Start(ctx); err != nil && ctx.Err() == nil {
			panic(err)
		}
	}()
	return nil
}

func (w *world) createFile(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for decoder := utilyaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		u := &unstructured.Unstructured{}
		if err := decoder.Decode(&u.Object); err != nil {
			return nil // end of file
		}
		if len(u.Object) == 0 {
			continue
		}
		if err := w.admin.Create(ctx, u); err != nil {
			return err
		}
	}
}

// read returns the only object in a file.
func (w *world) read(path string) (*unstructured.Unstructured, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	return u, utilyaml.Unmarshal(content, &u.Object)
}

// fakeMembers are admin endpoints with mutual TLS, by the port that the operator requests.
type fakeMembers struct {
	now     func() time.Time
	mu      sync.Mutex
	servers map[uint16]*httptest.Server
	// cutOff is an address that the operator cannot reach.
	cutOff netip.Addr
}

func (f *fakeMembers) client(address netip.AddrPort, config *tls.Config) *adminapi.Client {
	config.Time = f.now
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.servers[address.Port()]; address.Addr() == f.cutOff {
		address = netip.MustParseAddrPort("127.0.0.1:1")
	} else if s != nil {
		address = netip.MustParseAddrPort(s.Listener.Addr().String())
	}
	return adminapi.NewClient(address, config)
}

// serve starts an endpoint with a member's certificates. It mounts them again for each connection, without the delay of a
// kubelet.
func (f *fakeMembers) serve(t *testing.T, port int32, mount func() string, handler http.Handler) {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.TLS = &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		config, err := tlsdir.Server(mount(), certs.AdminTrustFile).GetConfigForClient(hello)
		if err == nil {
			config.Time = f.now
		}
		return config, err
	}}
	s.StartTLS()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.servers[uint16(port)] = s
	t.Cleanup(s.Close)
}

// fakeMember is a database member with a status and schemas.
type fakeMember struct {
	adminapi.Database
	mu      sync.Mutex
	status  adminapi.Status
	silence error // instead of an answer
	asked   int
	schemas adminapi.Schemas
}

func (m *fakeMember) Schemas(context.Context) (adminapi.Schemas, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.schemas, nil
}

func (m *fakeMember) Convert(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.schemas.Database = m.schemas.Image
	return nil
}

func (m *fakeMember) Status(context.Context) (adminapi.Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	return m.status, m.silence
}

func (m *fakeMember) set(change func(*adminapi.Status)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.status)
}

// mount writes a Secret's files into a directory, as a kubelet does, and returns it.
func (w *world) mount(t *testing.T, secret string) func() string {
	t.Helper()
	directory := t.TempDir()
	return func() string {
		var s corev1.Secret
		if err := w.admin.Get(t.Context(), client.ObjectKey{Namespace: testNamespace, Name: secret}, &s); err != nil {
			return directory // unchanged, because the test may be over
		}
		for name, data := range s.Data {
			if err := os.WriteFile(filepath.Join(directory, name), data, 0o600); err != nil {
				t.Error(err)
			}
		}
		return directory
	}
}

// addNode creates a node with a kubelet that answers and without a network. It runs Linux, unless the labels differ.
func (w *world) addNode(t *testing.T, name, address string, labels map[string]string) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
	maps.Copy(n.Labels, labels)
	if err := w.admin.Create(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady"}}
	if err := w.admin.Status().Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
}

// addPod creates a pod of a workload that is not ready.
func (w *world) addPod(t *testing.T, name, component, node, address, revision string) *corev1.Pod {
	t.Helper()
	pod := w.newPod(name, component, node, revision)
	if err := w.admin.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	pod.Status.PodIP, pod.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
	if err := w.admin.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

func (w *world) newPod(name, component, node, revision string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: testNamespace, Labels: map[string]string{
			render.PartOfLabel: render.PartOf, render.ComponentLabel: component, appsv1.ControllerRevisionHashLabelKey: revision,
		}, Annotations: map[string]string{render.TemplateAnnotation: revision}},
		Spec: corev1.PodSpec{NodeName: node, HostNetwork: true, Containers: []corev1.Container{{Name: component, Image: "kiln.local/kiln:test"}}},
	}
}

func (w *world) setReady(t *testing.T, pod *corev1.Pod, ready bool) {
	t.Helper()
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now()}}
	pod.Status.ContainerStatuses = nil
	if err := w.admin.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

// settle acts as the workload controllers: it reports the current template as rolled out on count pods.
func (w *world) settle(t *testing.T, o client.Object, count int32) {
	t.Helper()
	g := newG(t)
	g.Expect(w.admin.Get(t.Context(), client.ObjectKeyFromObject(o), o)).To(Succeed())
	before := o.DeepCopyObject().(client.Object)
	switch s := o.(type) {
	case *appsv1.StatefulSet:
		s.Status = appsv1.StatefulSetStatus{
			ObservedGeneration: s.Generation, Replicas: count, ReadyReplicas: count, UpdatedReplicas: count, UpdateRevision: revisionOf(s),
		}
	case *appsv1.Deployment:
		s.Status = appsv1.DeploymentStatus{ObservedGeneration: s.Generation, Replicas: count, ReadyReplicas: count, UpdatedReplicas: count}
	case *appsv1.DaemonSet:
		s.Status = appsv1.DaemonSetStatus{
			ObservedGeneration: s.Generation, DesiredNumberScheduled: count, NumberReady: count, UpdatedNumberScheduled: count,
		}
	}
	g.Expect(w.admin.Status().Patch(t.Context(), o, client.MergeFrom(before))).To(Succeed()) // a patch: the operator may write it too
}

func revisionOf(s *appsv1.StatefulSet) string {
	return s.Spec.Template.Annotations[render.TemplateAnnotation]
}

func (w *world) cluster(t *testing.T) *v1alpha1.OVNCluster {
	t.Helper()
	var c v1alpha1.OVNCluster
	if err := w.admin.Get(t.Context(), client.ObjectKey{Name: v1alpha1.OVNClusterName}, &c); err != nil {
		t.Fatal(err)
	}
	return &c
}
