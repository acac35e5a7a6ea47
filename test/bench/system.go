// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

// The system under test is a shell command, with the variables that environment sets. It is ready when the first pods are
// annotated. The constants are Kiln's values, the defaults of the flags.
const (
	controller = "controller"
	// kilnCommand is the default of -system.
	kilnCommand = `"$KILN" controller --pod-cidrs=10.16.0.0/16 --tls-dir="$TLS_DIR" --port-security="$PORT_SECURITY"` +
		` --address="$METRICS_ADDRESS" --pprof-address="$PPROF_ADDRESS"`
	// kilnCRDs, kilnLease and kilnLegs are the defaults of -crds, -lease and -legs.
	kilnCRDs  = "config/crd/bases"
	kilnLease = "default/kube-ovn-controller"
	kilnLegs  = "kiln_"
)

// instance is a process of the system under test. Two concurrent instances have different addresses.
type instance struct {
	*process
	slot           int
	metrics, pprof string
}

// environment returns the variables that a system needs.
func (b *bench) environment(i instance) []string {
	w := b.world
	namespace, _, _ := strings.Cut(b.options.lease, "/")
	return append(os.Environ(),
		"KILN="+b.options.kiln, "KUBECONFIG="+w.kubeconfig(), "POD_NAMESPACE="+namespace, fmt.Sprint("POD_NAME=", controller, i.slot),
		"METRICS_ADDRESS="+i.metrics, "PPROF_ADDRESS="+i.pprof,
		"PORT_SECURITY="+string(b.options.portSecurity),
		"OVN_NB=ssl:"+w.address+":"+northboundPort, "TLS_DIR="+w.clientTLS(),
		"OVN_NB_TCP=tcp:"+w.address+":"+plainNorthboundPort, "OVN_SB_TCP=tcp:"+w.address+":"+plainSouthboundPort,
		"OVN_NB_UNIX=unix:"+w.socket("nb"), "OVN_SB_UNIX=unix:"+w.socket("sb"),
	)
}

// startInstance runs the system under test on the driver's CPU, which it inherits.
func (b *bench) startInstance(slot int) (*instance, error) {
	i := instance{
		slot:    slot,
		metrics: fmt.Sprintf("%s:%d", b.world.address, 10660+10*slot), pprof: fmt.Sprintf("%s:%d", b.world.address, 10661+10*slot),
	}
	cmd := exec.Command("sh", "-c", "exec "+b.options.system)
	cmd.Env = b.environment(i)
	var err error
	if i.process, err = b.world.start(fmt.Sprint(controller, slot), cmd); err != nil {
		return nil, err
	}
	return &i, nil
}

// startLeader starts an instance and makes it the one that is measured.
func (b *bench) startLeader(slot int) error {
	i, err := b.startInstance(slot)
	if err != nil {
		return err
	}
	b.leads(i)
	return nil
}

func (b *bench) leads(i *instance) {
	b.leader, b.world.pids[controller] = i, i.pid()
}

// crash kills the leader and then releases its Lease, which the killed process could not do.
func (b *bench) crash(ctx context.Context) error {
	b.leader.kill()
	namespace, name, _ := strings.Cut(b.options.lease, "/")
	patch := []byte(`{"spec":{"holderIdentity":""}}`)
	_, err := b.world.clients.CoordinationV1().Leases(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("release the Lease: %w", err)
	}
	return nil
}

// acquired returns when the present holder of the Lease acquired it.
func (b *bench) acquired(ctx context.Context) (time.Time, error) {
	namespace, name, _ := strings.Cut(b.options.lease, "/")
	lease, err := b.world.clients.CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, fmt.Errorf("read the Lease: %w", err)
	}
	if lease.Spec.AcquireTime == nil {
		return time.Time{}, fmt.Errorf("the Lease %s does not say when it was taken", b.options.lease)
	}
	return lease.Spec.AcquireTime.Time, nil
}

// liveHeap returns the leader's heap after a garbage collection, or zero if the system has no profiles or metrics.
func (b *bench) liveHeap(ctx context.Context) (float64, error) {
	if err := b.profile(ctx, "heap?gc=1", filepath.Join(b.world.dir, "heap.pprof")); err != nil {
		return 0, nil //nolint:nilerr // the system has no profiles
	}
	after, err := scrape(ctx, b.leader.metrics)
	heap, _ := after.value("go_memstats_heap_alloc_bytes")
	return heap, err
}

// profile saves one of the leader's profiles (net/http/pprof).
func (b *bench) profile(ctx context.Context, what, file string) error {
	body, err := get(ctx, "http://"+b.leader.pprof+"/debug/pprof/"+what)
	if err != nil {
		return fmt.Errorf("take a profile: %w", err)
	}
	defer body.Close()
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("save a profile: %w", err)
	}
	_, err = io.Copy(out, body)
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("save a profile: %w", err)
	}
	return nil
}

// build compiles kiln from a source tree into a directory.
func build(ctx context.Context, tree, into string) (string, error) {
	binary := filepath.Join(into, "kiln")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", binary, "./cmd/kiln")
	cmd.Dir = tree
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build kiln: %w\n%s", err, out)
	}
	return binary, nil
}

// objects returns a client for Kubernetes' kinds and the network's kinds, with the rights of a cluster administrator.
func (w *world) objects() (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), kubeovnv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register kinds: %w", err)
	}
	config := *w.api.Config
	config.QPS = -1
	c, err := client.New(&config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return c, nil
}

// createOVNCluster sets the northbound database's address for Kiln's controller, as the operator would. It does nothing if the
// system under test has no such kind.
func (w *world) createOVNCluster(ctx context.Context, datapath v1alpha1.Datapath) error {
	c, err := w.objects()
	if err != nil {
		return err
	}
	cluster := &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OVNClusterName}}
	cluster.Spec.Nodes.Datapath = datapath
	if datapath == v1alpha1.DatapathUserspace {
		cluster.Spec.Nodes.TunnelInterface = "eth1" // required; no node reads it
	}
	if err := c.Create(ctx, cluster); isAbsent(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("create the OVNCluster: %w", err)
	}
	cluster.Status.Northbound.Members = []v1alpha1.DatabaseMember{{Node: nodeName(0), Address: w.address}}
	if err := c.Status().Update(ctx, cluster); err != nil {
		return fmt.Errorf("name the member of the northbound database: %w", err)
	}
	return nil
}

// countIPs counts the IP objects of the pods in namespace. It returns false for a system without that kind.
func (w *world) countIPs(ctx context.Context) (int, bool, error) {
	c, err := w.objects()
	if err != nil {
		return 0, false, err
	}
	var list kubeovnv1.IPList
	if err := c.List(ctx, &list); isAbsent(err) {
		return 0, false, nil
	} else if err != nil {
		return 0, false, fmt.Errorf("list IP objects: %w", err)
	}
	ofPods := 0
	for i := range list.Items {
		if list.Items[i].Spec.Namespace == namespace {
			ofPods++
		}
	}
	return ofPods, true, nil
}
