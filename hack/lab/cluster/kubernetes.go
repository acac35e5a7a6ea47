// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/hack/lab/config"
	"github.com/kiln-net/kiln/hack/lab/topology"
)

// fieldManager is the field manager of all objects that the lab applies.
const fieldManager = "kiln-lab"

// Time limits of steps on a slow machine.
const (
	apiTimeout      = 2 * time.Minute
	registerTimeout = 2 * time.Minute
)

//go:embed coredns.yaml
var coreDNS []byte

// api waits until the API server reports ready.
func (u *up) api(ctx context.Context) error {
	clients, err := u.clients()
	if err != nil {
		return err
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, apiTimeout, true, func(ctx context.Context) (bool, error) {
		last = clients.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("not ready after %s: %w (log: %s)", apiTimeout, errors.Join(err, last), u.controlPlaneLog("kube-apiserver"))
	}
	return u.serviceAccount(ctx, clients)
}

// serviceAccount waits until pods can be created: that needs the default service account, which the controller-manager creates.
func (u *up) serviceAccount(ctx context.Context, clients *kubernetes.Clientset) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	accounts := cache.NewListWatchFromClient(clients.CoreV1().RESTClient(), "serviceaccounts", metav1.NamespaceDefault,
		fields.OneTermEqualSelector(metav1.ObjectNameField, "default"))
	_, err := watchtools.UntilWithSync(ctx, accounts, &corev1.ServiceAccount{}, nil, func(e watch.Event) (bool, error) {
		return e.Type == watch.Added, nil
	})
	if err != nil {
		return fmt.Errorf("no default service account: %w (log: %s)", err, u.controlPlaneLog("kube-controller-manager"))
	}
	return nil
}

// nodes waits until all nodes have registered. Then it labels the control planes, because a kubelet may not set that label itself.
func (u *up) nodes(ctx context.Context) error {
	clients, err := u.clients()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	missing := map[string]bool{}
	for _, n := range u.Topology.Nodes() {
		missing[n.Name] = true
	}
	nodes := cache.NewListWatchFromClient(clients.CoreV1().RESTClient(), "nodes", "", fields.Everything())
	_, err = watchtools.UntilWithSync(ctx, nodes, &corev1.Node{}, nil, func(e watch.Event) (bool, error) {
		if n, ok := e.Object.(*corev1.Node); ok {
			delete(missing, n.Name)
		}
		return len(missing) == 0, nil
	})
	if err != nil {
		late := slices.Sorted(maps.Keys(missing))
		return fmt.Errorf("%s did not register: %w (log: %s)", strings.Join(late, ", "), err, u.dir.log(late[0], "kubelet"))
	}
	patch := []byte(`{"metadata":{"labels":{"` + config.ControlPlaneLabel + `":""}}}`)
	for _, n := range u.Topology.Nodes() {
		if !n.ControlPlane {
			continue
		}
		_, err := clients.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{FieldManager: fieldManager})
		if err != nil {
			return fmt.Errorf("label node %s: %w", n.Name, err)
		}
	}
	return nil
}

// addons applies CoreDNS.
func (u *up) addons(ctx context.Context) error {
	rc, err := u.rest()
	if err != nil {
		return err
	}
	c, err := client.New(rc, client.Options{})
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	objects, err := coreDNSObjects(u.Topology)
	if err != nil {
		return err
	}
	for _, o := range objects {
		err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(fieldManager), client.ForceOwnership)
		if err != nil {
			return fmt.Errorf("apply %s %s: %w (log: %s)", o.GetKind(), o.GetName(), err, u.controlPlaneLog("kube-apiserver"))
		}
	}
	return nil
}

// coreDNSObjects returns the manifests of CoreDNS, with the ClusterIPs of the plan.
func coreDNSObjects(top topology.Topology) ([]*unstructured.Unstructured, error) {
	objects, err := decode(coreDNS)
	if err != nil {
		return nil, fmt.Errorf("decode the manifests of CoreDNS: %w", err)
	}
	var addresses []any
	for _, a := range top.DNSServiceIP() {
		addresses = append(addresses, a.String())
	}
	for _, o := range objects {
		if o.GetKind() != "Service" {
			continue
		}
		spec, ok := o.Object["spec"].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("the Service %s of CoreDNS has no spec", o.GetName())
		}
		spec["clusterIP"], spec["clusterIPs"] = addresses[0], addresses
	}
	return objects, nil
}

// decode returns the objects of a file of YAML documents.
func decode(manifests []byte) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096); ; {
		o := &unstructured.Unstructured{}
		err := d.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if len(o.Object) > 0 {
			out = append(out, o)
		}
	}
}

func (u *up) controlPlaneLog(program string) string {
	return u.dir.log(u.Topology.Nodes()[0].Name, program)
}

func (u *up) clients() (*kubernetes.Clientset, error) {
	rc, err := u.rest()
	if err != nil {
		return nil, err
	}
	return clientset(rc)
}

func (u *up) rest() (*rest.Config, error) { return restConfig(u.dir) }

func restConfig(d stateDir) (*rest.Config, error) {
	rc, err := clientcmd.BuildConfigFromFlags("", d.kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("load the kubeconfig: %w", err)
	}
	rc.Timeout = 10 * time.Second
	rc.WarningHandler = rest.NoWarnings{}
	return rc, nil
}

func clientset(rc *rest.Config) (*kubernetes.Clientset, error) {
	c, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return c, nil
}
