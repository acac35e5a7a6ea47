// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/serving/scrape"
	"github.com/kiln-net/kiln/internal/version"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

const (
	// operatorHealthPort is the port of metrics, /healthz and /readyz.
	operatorHealthPort = 10670
	// operatorRenewDeadline is how long the leader tries to renew its Lease before it gives up.
	operatorRenewDeadline = 10 * time.Second
)

// operatorOptions are the operator's parameters from its environment.
type operatorOptions struct {
	// own is the operator's pod, in the namespace of every operand. The components run its image.
	own k8s.Identity
	// image of the components; if empty, the operator's own image.
	image string
	// observe applies the OVNCluster to this process.
	observe func(*v1alpha1.OVNCluster)
	// access is to the operator's metrics.
	access *scrape.Access
}

var operatorComponent = component{
	verbosity:     func(s *v1alpha1.OVNClusterSpec) int32 { return s.Logging.OperatorLevel },
	profilingPort: operatorHealthPort + profilingOffset,
}

func newOperatorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "operator",
		Short: "Installs and operates OVN from the OVNCluster resource",
		Long: "Installs and operates OVN from the OVNCluster resource.\n\n" +
			"Environment: POD_NAMESPACE is the namespace of all components. They run the image KILN_IMAGE, by default the image of the pod POD_NAME.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			process := operatorComponent
			process.access = newAccess(operatorHealthPort)
			apply, err := process.observer(cmd.Context())
			if err != nil {
				return err
			}
			own, err := k8s.OwnIdentity()
			if err != nil {
				return err
			}
			return runOperator(cmd.Context(), operatorOptions{own: own, image: os.Getenv("KILN_IMAGE"), observe: apply, access: process.access})
		},
	}
}

func runOperator(ctx context.Context, o operatorOptions) error {
	scheme, err := operator.NewScheme()
	if err != nil {
		return err
	}
	kubeconfig, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("load the API server's address and credentials: %w", err)
	}
	if err := observe(ctx, kubeconfig, o.observe); err != nil {
		return err
	}
	kubeconfig.QPS = -1 // the API server's priority and fairness limits the rate; a pass applies about forty objects
	if o.image == "" {
		if o.image, err = ownImage(ctx, kubeconfig, o); err != nil {
			return err
		}
	}
	lock, err := o.own.Lock(kubeconfig, "kiln-operator", operatorRenewDeadline)
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(kubeconfig, ctrl.Options{
		Scheme:                              scheme,
		Cache:                               operator.CacheOptions(o.own.Namespace),
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true,
		RenewDeadline:                       new(operatorRenewDeadline),
		Metrics:                             scrape.NoServer(),
	})
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	served := scrape.Served{Address: fmt.Sprintf(":%d", operatorHealthPort), Probes: scrape.ProbesLocal, Ready: healthz.Ping, Access: o.access.Handler}
	if err := scrape.Serve(mgr, served); err != nil {
		return err
	}
	if err := setupOperator(mgr, o); err != nil {
		return err
	}
	log.FromContext(ctx).Info("starting", "namespace", o.own.Namespace, "image", o.image)
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the manager: %w", err)
	}
	return nil
}

func setupOperator(mgr ctrl.Manager, o operatorOptions) error {
	server, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("make a client for the version of the API server: %w", err)
	}
	clusters := &operator.Reconciler{
		Client:    mgr.GetClient(),
		APIReader: mgr.GetAPIReader(),
		Recorder:  mgr.GetEventRecorder("kiln-operator"),
		Namespace: o.own.Namespace,
		Pod:       o.own.Pod,
		Image:     o.image,
		Admin:     adminapi.NewClient,
		Versions:  version.Get,
		Server:    server,
		Now:       time.Now,
	}
	if err := clusters.SetupWithManager(mgr); err != nil {
		return err
	}
	chassis := &certs.ChassisReconciler{
		Client:    mgr.GetClient(),
		APIReader: mgr.GetAPIReader(),
		Namespace: o.own.Namespace,
		Now:       time.Now,
	}
	return chassis.SetupWithManager(mgr)
}

// ownImage returns the image of this process from its pod.
func ownImage(ctx context.Context, kubeconfig *rest.Config, o operatorOptions) (string, error) {
	c, err := client.New(kubeconfig, client.Options{})
	if err != nil {
		return "", fmt.Errorf("make a client: %w", err)
	}
	var pod corev1.Pod
	if err := c.Get(ctx, types.NamespacedName{Namespace: o.own.Namespace, Name: o.own.Pod}, &pod); err != nil {
		return "", fmt.Errorf("look up the operator's own pod: %w", err)
	}
	return pod.Spec.Containers[0].Image, nil
}
