// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

const (
	controller = "controller"
	// lease is the controller's, in leaseNamespace.
	lease          = "kube-ovn-controller"
	leaseNamespace = "default"
)

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

// createOVNCluster tells the controller where the northbound database is, as the operator would.
func (w *world) createOVNCluster(ctx context.Context) error {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return fmt.Errorf("register the OVNCluster: %w", err)
	}
	c, err := client.New(w.api.Config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("make a client of the OVNCluster: %w", err)
	}
	cluster := &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OVNClusterName}}
	if err := c.Create(ctx, cluster); err != nil {
		return fmt.Errorf("create the OVNCluster: %w", err)
	}
	cluster.Status.Northbound.Members = []v1alpha1.DatabaseMember{{Node: nodeName(0), Address: northboundAddress}}
	if err := c.Status().Update(ctx, cluster); err != nil {
		return fmt.Errorf("name the member of the northbound database: %w", err)
	}
	return nil
}

// startController runs a kiln binary as a process of its own.
func (w *world) startController(kiln string) error {
	cmd := exec.Command(kiln, "controller", "--pod-cidrs=10.16.0.0/16", "--tls-dir="+w.clientTLS(),
		"--address="+controllerAddress, "--pprof-address="+pprofAddress)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.kubeconfig(), "POD_NAMESPACE="+leaseNamespace)
	p, err := start(w.dir, controller, cmd)
	if err != nil {
		return err
	}
	w.running[controller], w.pids[controller] = p, p.pid()
	return nil
}

// awaitController waits until the controller reaches the northbound database.
func (w *world) awaitController() error {
	return within(time.Minute, func() error {
		body, err := get(context.Background(), "http://"+controllerAddress+"/readyz")
		if err != nil {
			return fmt.Errorf("wait for the controller: %w\n%s", err, w.running[controller].tail())
		}
		return body.Close()
	})
}

// crash kills the controller and takes its Lease away, which it could not release itself.
func (w *world) crash(ctx context.Context) error {
	w.running[controller].kill()
	patch := []byte(`{"spec":{"holderIdentity":""}}`)
	_, err := w.clients.CoordinationV1().Leases(leaseNamespace).Patch(ctx, lease, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("release the Lease: %w", err)
	}
	return nil
}

// liveHeap is what the controller uses once it has freed everything else.
func (w *world) liveHeap(ctx context.Context) (int64, error) {
	if err := w.profile(ctx, "heap?gc=1", filepath.Join(w.dir, "heap.pprof")); err != nil {
		return 0, err
	}
	body, err := get(ctx, "http://"+controllerAddress+"/metrics")
	if err != nil {
		return 0, fmt.Errorf("read the controller's metrics: %w", err)
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), "go_memstats_heap_alloc_bytes "); ok {
			bytes, err := strconv.ParseFloat(value, 64)
			return int64(bytes), err
		}
	}
	return 0, errors.Join(errors.New("the controller does not say how large its heap is"), lines.Err())
}

// countIPs counts the IP objects of pods in the pods' namespace.
func (w *world) countIPs(ctx context.Context) (int, error) {
	scheme := runtime.NewScheme()
	if err := kubeovnv1.AddToScheme(scheme); err != nil {
		return 0, fmt.Errorf("register the IP objects: %w", err)
	}
	c, err := client.New(w.api.Config, client.Options{Scheme: scheme})
	if err != nil {
		return 0, fmt.Errorf("make a client of IP objects: %w", err)
	}
	var list kubeovnv1.IPList
	if err := c.List(ctx, &list); err != nil {
		return 0, fmt.Errorf("list IP objects: %w", err)
	}
	ofPods := 0
	for i := range list.Items {
		if list.Items[i].Spec.Namespace == namespace {
			ofPods++
		}
	}
	return ofPods, nil
}

// profile saves one of the controller's profiles.
func (w *world) profile(ctx context.Context, what, file string) error {
	body, err := get(ctx, "http://"+pprofAddress+"/debug/pprof/"+what)
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

func get(ctx context.Context, url string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("%s is %s", url, response.Status), response.Body.Close())
	}
	return response.Body, nil
}
