// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/testing/daemontest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/prepared/apiserver"
)

const (
	// northboundName is the name in the certificate of the northbound database.
	northboundName = "ovn-nb"
	// lease is the controller's Lease, in namespace default.
	lease = "kube-ovn-controller"
)

// Loopback addresses that are unique per test process, of the northbound database and of the controller's metrics.
var (
	northboundAddress = fmt.Sprintf("127.84.%d.%d:6641", os.Getpid()>>8&255, os.Getpid()&255)
	controllerAddress = fmt.Sprintf("127.85.%d.%d:10660", os.Getpid()>>8&255, os.Getpid()&255)
)

// world is an API server, a northbound database and, between them, a controller that can be killed.
type world struct {
	*testing.T
	client     client.Client
	clients    *kubernetes.Clientset
	database   *nbtest.Server
	dir        string
	binary     string
	tls        *nbtest.TLS
	stopServer func()
	controller *daemontest.Daemon
	log        string
	started    int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	w := &world{T: t, dir: t.TempDir()}
	w.log = filepath.Join(w.dir, "controller.log")
	w.build()
	w.startAPI()
	w.tls = nbtest.NewTLS(t, northboundName, lease)
	w.database = nbtest.Start(t)
	w.serve(w.database)
	w.nameDatabase()
	t.Cleanup(w.kill)
	return w
}

func (w *world) build() {
	w.binary = filepath.Join(w.dir, "kiln")
	cmd := exec.Command("go", "build", "-trimpath", "-o", w.binary, "../../cmd/kiln")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		w.Fatalf("build kiln: %v\n%s", err, out)
	}
}

func (w *world) startAPI() {
	env, err := apiserver.New()
	must.Succeed(w, err)
	env.ControlPlane.Etcd = &envtest.Etcd{}
	env.ControlPlane.Etcd.Configure().Set("unsafe-no-fsync", "true")
	config, err := env.Start()
	must.Succeed(w, err)
	w.Cleanup(func() {
		if err := env.Stop(); err != nil {
			w.Error(err)
		}
	})
	must.Succeed(w, os.WriteFile(w.kubeconfig(), env.KubeConfig, 0o600))
	scheme := runtime.NewScheme()
	must.Succeed(w, clientgoscheme.AddToScheme(scheme))
	must.Succeed(w, kubeovnv1.AddToScheme(scheme))
	must.Succeed(w, v1alpha1.AddToScheme(scheme))
	w.client, err = client.New(config, client.Options{Scheme: scheme})
	must.Succeed(w, err)
	w.clients, err = kubernetes.NewForConfig(config)
	must.Succeed(w, err)
}

func (w *world) kubeconfig() string { return filepath.Join(w.dir, "kubeconfig") }

// serve makes database the one that the controller connects to.
func (w *world) serve(database *nbtest.Server) {
	w.Helper()
	if w.stopServer != nil {
		w.stopServer()
	}
	w.stopServer = w.tls.Listen(w, northboundAddress, database)
}

func (w *world) nameDatabase() {
	cluster := &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OVNClusterName}}
	must.Succeed(w, w.client.Create(w.Context(), cluster))
	host, _, _ := net.SplitHostPort(northboundAddress)
	cluster.Status.Northbound.Members = []v1alpha1.DatabaseMember{{Node: "n0", Address: host}}
	must.Succeed(w, w.client.Status().Update(w.Context(), cluster))
}

// start starts the controller.
func (w *world) start() {
	w.Helper()
	command := exec.Command(w.binary, "controller", "--pod-cidrs=10.16.0.0/16,fd00:10:16::/64", "--tls-dir="+w.tls.Dir, "--address="+controllerAddress)
	command.Env = append(os.Environ(), "KUBECONFIG="+w.kubeconfig(), "POD_NAMESPACE=default", "POD_NAME=controller")
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	w.controller = daemontest.Start(w, "the controller", w.log, command)
	w.controller.Tolerate(leadLost)
	w.started++
}

// leadLost is the message of a controller that ends because it could not renew its Lease in time, as on an overloaded machine. In a
// cluster the kubelet restarts it.
const leadLost = "leader election lost"

// restart starts the controller again after it ended by itself. It fails the test if the cause was not the Lease.
func (w *world) restart() {
	w.Helper()
	if err := w.controller.Ended(); err != nil {
		w.keepLog()
		w.Fatal(err)
	}
	w.start()
}

// kill ends the controller with SIGKILL and releases its Lease, so that the next one need not wait for it to expire.
func (w *world) kill() {
	if w.controller == nil {
		return
	}
	w.controller.Kill()
	w.controller = nil
	_, _ = w.clients.CoordinationV1().Leases("default").Patch(context.Background(), lease, types.MergePatchType,
		[]byte(`{"spec":{"holderIdentity":""}}`), metav1.PatchOptions{}) // the Lease may not exist yet
}

// eventually waits until what returns "". On a time-out it fails the test with the last result.
func (w *world) eventually(limit time.Duration, what func() string) {
	w.Helper()
	if wrong := (eventually.Wait{Limit: limit, Pause: 100 * time.Millisecond}).Last(w, what); wrong != "" {
		w.keepLog()
		w.Fatal(wrong)
	}
}

// keepLog copies the controller's log to a file that outlives the test.
func (w *world) keepLog() {
	content, err := os.ReadFile(w.log)
	if err != nil {
		return
	}
	kept, err := os.CreateTemp("", "soak-controller-*.log")
	if err != nil {
		return
	}
	defer kept.Close()
	_, _ = kept.Write(content)
	w.Logf("the controller's log is in %s", kept.Name())
}

// idle returns the work that the controller still has to do, or "" if there is none.
func (w *world) idle() string {
	w.Helper()
	select {
	case <-w.controller.Done():
		w.restart()
		return "the controller had lost its Lease"
	default:
	}
	response, err := http.Get("http://" + controllerAddress + "/metrics")
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	leading := false
	for line := range strings.Lines(string(body)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		leading = leading || strings.HasPrefix(name, "leader_election_master_status") && value == "1"
		for _, busy := range []string{"workqueue_depth{", "workqueue_unfinished_work_seconds{", "controller_runtime_active_workers{"} {
			if strings.HasPrefix(name, busy) && value != "0" {
				return line
			}
		}
	}
	if !leading {
		return "the controller does not lead"
	}
	return ""
}
